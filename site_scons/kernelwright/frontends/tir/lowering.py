"""Lowers a TVM PrimFunc or IRModule: it is scheduled if it has to be, and becomes host and device code.

Written for TVM 0.27, whose lowering functions are called one by one: its own ``build`` would compile the device code
for the machine that it runs on.
"""

from __future__ import annotations

import importlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from ...core.arch import CPU_LEVELS, llvm_target, real_arch
from ...core.errors import DefinitionError, KernelwrightError, LoweringError
from ...core.files import pretty_json
from ...runtime.dtype import passed_as
from ...runtime.size import Line, stride_of
from ..launch_limits import require_within_limits
from ..raised import MAX_MESSAGE, first_line
from ..unit import LoweredKernel, Unit, returned_in
from .alignment import relaxed
from .launch import launches_of
from .passes import pass_context
from .pipeline import passes_for, require_one_order
from .schedule import AS_WRITTEN, BLOCK, candidates, has_blocks, is_bound_to_threads
from .signature import Argument, arguments_of, require_written, stride_symbols_of, symbols_of, told_by, with_alignments
from .tensor_maps import in_plain_memory, is_pointer, with_type

PACKED_CALL = 1
"""Value of the attribute ``calling_conv`` of a function with the packed signature (``CallingConv::kCPackedFunc``)."""

APART = {"tirx.disable_storage_rewrite": True}
"""Config of TVM's passes without which two workspaces may be the same memory, if no launch needs both.

One of them would not be zeroed any more when its first launch begins.
"""


@dataclass(frozen=True)
class _Code:
    """Generated code by file name, the signatures of the device functions in it, and the host module it is from."""

    files: dict[str, bytes]
    device_kernels: list[dict[str, Any]]
    host: tvm.IRModule
    limited: Mapping[str, str] | None = None


def target_for(unit: Unit) -> Target:
    """The TVM target of a unit.

    Raises:
        LoweringError: there is no such CPU arch (LLVM would only warn, and generate code for another).
    """
    if unit.target == "cuda":
        return Target({"kind": "cuda", "arch": real_arch(unit.arch)})
    if unit.arch not in CPU_LEVELS:
        raise LoweringError(f"unknown CPU arch {unit.arch!r}", unit.where, f"use one of {', '.join(CPU_LEVELS)}")
    triple, cpu = llvm_target(unit.arch)
    return Target({"kind": "llvm", "mtriple": triple, "mcpu": cpu})


def lower(definition: tirx.PrimFunc | tvm.IRModule, unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
    """Lower what a definition returned.

    Arguments:
        definition: what the definition returned; an IRModule has one entry function.
        unit: what is being lowered.
        progress: called with what is about to be done.

    Raises:
        DefinitionError: its arguments do not fit its decorator.
        LoweringError: no schedule could be found, or TVM cannot lower the function.
    """
    module, name = _entry_module(definition, unit)
    arguments = arguments_of(module[name], unit)
    require_written(arguments, unit)
    require_one_order(module, unit)
    target = target_for(unit)
    failures: list[str] = []
    for rule, scheduled in _scheduled(module, name, unit, target, progress, failures):
        progress(f"lowering ({rule})")
        try:
            code = _generate(scheduled, name, unit, target)
        except KernelwrightError:
            raise
        except Exception as error:  # TVM's passes raise errors of any type
            if rule == AS_WRITTEN:
                raise _lowering_error(error, unit) from error
            failures.append(f"{rule}: its result cannot be lowered: {first_line(error)}")
            continue
        aligned = with_alignments(arguments, scheduled[name], unit.target == "cuda")
        return _lowered(scheduled, module[name], aligned, code, rule, unit)
    raise _unscheduled(module[name], unit, failures)


def lower_host(
    function: tirx.PrimFunc,
    arguments: list[Argument],
    device_kernels: list[dict[str, Any]],
    unit: Unit,
    limited: Mapping[str, str] | None,
) -> LoweredKernel:
    """Lower a function that launches device functions which it does not have: their code is made in another way.

    Arguments:
        function: its body has ``T.call_ffi_kernel``.
        arguments: its arguments.
        device_kernels: what it launches, as ``signature.json`` has it.
        unit: what is being lowered, for CUDA.
        limited: as in ``signature.json``.

    Raises:
        DefinitionError: its arguments do not fit its decorator.
        LoweringError: TVM cannot lower it.
    """
    module = tvm.IRModule({unit.kernel: function.with_attr("global_symbol", unit.kernel)})
    try:
        with pass_context(APART):
            code = _generate(module, unit.kernel, unit, target_for(unit))
    except KernelwrightError:
        raise
    except Exception as error:  # TVM's passes raise errors of any type
        raise _lowering_error(error, unit) from error
    return _lowered(
        module, function, arguments, replace(code, device_kernels=device_kernels, limited=limited), AS_WRITTEN, unit
    )


def scheduled(definition: tirx.PrimFunc | tvm.IRModule, unit: Unit) -> tvm.IRModule:
    """What a definition returned as a module whose entry is scheduled, by the first rule that fits.

    Raises:
        DefinitionError: the definition is wrong.
        LoweringError: no rule fits.
    """
    module, name = _entry_module(definition, unit)
    failures: list[str] = []
    for _, result in _scheduled(module, name, unit, target_for(unit), lambda doing: None, failures):
        return result
    raise _unscheduled(module[name], unit, failures)


def argument_names(definition: tirx.PrimFunc | tvm.IRModule, unit: Unit) -> list[str]:
    """The names of the arguments of what a definition returned.

    Raises:
        DefinitionError: a parameter is of another kind.
    """
    module, name = _entry_module(definition, unit)
    return [argument.name for argument in arguments_of(module[name], unit)]


def _entry_module(definition: tirx.PrimFunc | tvm.IRModule, unit: Unit) -> tuple[tvm.IRModule, str]:
    """The definition as a module in which only the entry is public and has the kernel's name, and the entry's name.

    The entry has what the variant knows of sizes.
    """
    if isinstance(definition, tirx.PrimFunc):
        name, module = unit.kernel, tvm.IRModule({unit.kernel: definition.with_attr("global_symbol", unit.kernel)})
    else:
        module, name = _with_one_entry(definition, unit)
    if unit.multiples:
        module = _replaced(module, name, assumed(module[name], unit.multiples, unit))
    return module, name


def _with_one_entry(module: tvm.IRModule, unit: Unit) -> tuple[tvm.IRModule, str]:
    functions = {var.name_hint: function for var, function in module.functions_items()}
    for name, function in functions.items():
        if not isinstance(function, tirx.PrimFunc):
            raise DefinitionError(f"{name} in the IRModule is a {type(function).__name__}, not a PrimFunc", unit.where)
    public = [name for name, function in functions.items() if "global_symbol" in function.attrs]
    if len(public) > 1 and "main" in public:
        public = ["main"]
    if len(public) != 1 and len(functions) == 1:
        public = list(functions)
    if len(public) != 1:
        names = ", ".join(sorted(public)) or "none"
        raise DefinitionError(
            f"the IRModule must have one entry function, but its public functions are: {names}",
            unit.where,
            "call the entry main, and mark the others with @T.prim_func(private=True)",
        )
    entry = public[0]
    for var, function in module.functions_items():
        if var.name_hint == entry:
            module[var] = function.with_attr("global_symbol", unit.kernel)
        elif "global_symbol" in function.attrs:
            module[var] = function.without_attr("global_symbol")
    return module, entry


def _scheduled(
    module: tvm.IRModule,
    name: str,
    unit: Unit,
    target: Target,
    progress: Callable[[str], None],
    failures: list[str],
) -> Iterator[tuple[str, tvm.IRModule]]:
    """The module with its entry scheduled, in the ways worth trying, each with the name of what scheduled it."""
    for rule, function in candidates(module[name], target, progress, failures):
        if target.kind.name == "cuda" and not is_bound_to_threads(function):
            failures.append(f"{rule}: it made no thread bindings")
            continue
        yield rule, _replaced(module, name, function.with_attr("global_symbol", unit.kernel))


def _replaced(module: tvm.IRModule, name: str, function: tirx.PrimFunc) -> tvm.IRModule:
    """A copy of a module with another function of that name."""
    functions = dict(module.functions_items())
    functions[module.get_global_var(name)] = function
    return tvm.IRModule(functions, attrs=module.attrs)


def _generate(module: tvm.IRModule, name: str, unit: Unit, target: Target) -> _Code:
    """Run TVM's passes, split host from device, and generate code for both."""
    build = importlib.import_module("tvm.tirx.build")  # the attribute of that name is a function
    host_target = Target({"kind": "c"}) if unit.target == "cuda" else target
    if unit.multiples:
        module = _replaced(module, name, asserted(module[name], unit.multiples, unit))
    if unit.target == "llvm":
        module = _replaced(module, name, relaxed(module[name]))
    module = _replaced(module, name, in_passed_dtypes(module[name]))
    passes, finish_host, finish_device = passes_for(module)
    bound = tirx.transform.BindTarget(target.with_host(host_target))(module)
    split, devices = build.split_host_device_mods(passes(bound))
    host = _with_symbol(finish_host()(in_plain_memory(split)), unit.symbol)
    compiled = build.codegen_build(host, host_target)
    if unit.target != "cuda":
        return _Code({"host.o": _object_code(compiled)}, [], split)
    # TVM 0.27 writes a number of 64 bits as T.int64(8) into the texts of errors.
    code = {"host.c": re.sub(r"\bT\.int64\((-?\d+)\)", r"\1", compiled.inspect_source()).encode()}
    if not devices:  # it launches what is not made here
        return _Code(code, [], split)
    files, device_kernels = _device_code(devices, finish_device, build.codegen_build, unit)
    return _Code(code | files, device_kernels, split)


def _device_code(
    devices: Any, finish: Callable[[], Any], codegen: Callable[..., Any], unit: Unit
) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    if len(devices) != 1:
        raise ValueError(f"expected device code for one target, got it for {len(devices)}")
    ((device_target, device),) = devices.items()
    device = finish()(device)
    source = with_type(codegen(device, device_target).inspect_source())
    if "TVMFFIErrorSetRaised" in source:
        remedy = "write it before the threads begin, where the host checks it, or let the threads return"
        raise DefinitionError(
            "it has an assert within threads of a GPU, which cannot raise an error", unit.where, remedy
        )
    return {"device.cu": source.encode()}, _device_kernels(device, source)


def _with_symbol(host: tvm.IRModule, symbol: str) -> tvm.IRModule:
    """The host module with its packed function renamed."""
    functions = {}
    for var, function in host.functions_items():
        body = tvm_ffi.structural_map(function.body, [(tirx.DeclBuffer, _with_size_before)])
        function = tirx.PrimFunc(function.params, body, function.ret_type, function.attrs, function.span)
        if int(function.attrs.get("calling_conv", 0)) == PACKED_CALL:
            function = function.with_attr("global_symbol", symbol)
            # For a module's only function LLVM would emit __tvm_ffi_main as well, in each of a kernel's objects.
            if "tirx.is_entry_func" in function.attrs:
                function = function.without_attr("tirx.is_entry_func")
        functions[var] = function
    return tvm.IRModule(functions, attrs=host.attrs)


def _with_size_before(declared: Any) -> Any:
    """A buffer whose size, if it is allocated, is a variable: TVM 0.27's C has parts of a minimum within that line."""
    sizes: list[Any] = []

    def named(call: Any) -> Any:
        if str(getattr(call.op, "name", "")) != "tirx.TVMBackendAllocWorkspace" or not _has_minimum(call.args[2]):
            return call
        sizes.append(tirx.Bind(tirx.Var("bytes", "uint64"), call.args[2]))
        return tvm.ir.Call(call.op, [*call.args[:2], sizes[0].var, *call.args[3:]], ret_ty=call.ty)

    data = tvm_ffi.structural_map(declared.data, [(tvm.ir.Call, named)])
    return tirx.SeqStmt([*sizes, tirx.DeclBuffer(declared.buffer, data=data)]) if sizes else declared


def _has_minimum(size: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(size, [(kind, found.append) for kind in (tirx.Min, tirx.Max)])
    return bool(found)


def _object_code(compiled: Any) -> bytes:
    with tempfile.TemporaryDirectory(prefix="kernelwright-") as folder:
        path = Path(folder) / "host.o"
        compiled.write_to_file(str(path), "o")
        return path.read_bytes()


def _device_kernels(device: tvm.IRModule, source: str) -> list[dict[str, Any]]:
    """Name, parameters and launch parameters of each function that the host launches, in the order of the source."""
    kernels = []
    for function in device.functions.values():
        if "tirx.kernel_launch_params" not in function.attrs:
            continue
        name = str(function.attrs["global_symbol"])
        params = [_kind(parameter.ty) for parameter in function.params]
        launch = [str(tag) for tag in function.attrs["tirx.kernel_launch_params"]]
        kernels.append({"name": name, "params": params, "launch": launch})
    return sorted(kernels, key=lambda kernel: re.search(rf"\b{kernel['name']}\(", source).start())  # type: ignore[union-attr]


def _kind(kind: Any) -> str:
    """What a parameter of a device function is: a dtype, ``handle`` or ``tensor_map``."""
    if isinstance(kind, tvm.ir.PrimType):
        return str(kind.dtype)
    return "tensor_map" if is_pointer(kind) else "handle"


def _lowered(
    module: tvm.IRModule, function: tirx.PrimFunc, arguments: list[Argument], code: _Code, rule: str, unit: Unit
) -> LoweredKernel:
    """The files of a unit.

    Arguments:
        module: the scheduled functions.
        function: the one that has the arguments, as the definition has it.
    """
    strides = stride_symbols_of(arguments)
    signature = {
        "schema": 1,
        **returned_in(unit, [argument.name for argument in arguments]),
        "kernel": unit.kernel,
        "slug": unit.slug,
        "config": dict(unit.config),
        "target": unit.target,
        "arch": unit.arch,
        "entry": unit.symbol,
        "arguments": [argument.to_json() for argument in arguments],
        "symbols": symbols_of(arguments, unit),
        **({"stride_symbols": strides} if strides else {}),
        **({"multiples": dict(unit.multiples)} if unit.multiples else {}),
        **({} if code.limited is None else {"limited": dict(code.limited)}),
        "device_kernels": code.device_kernels,
        "schedule": rule,
    }
    if unit.target == "cuda":
        signature |= launches_of(code.host, function, arguments, code.device_kernels)
        require_within_limits(signature["launches"] or (), unit)
    files = {"module.tir": _script(module), "signature.json": pretty_json(dict(sorted(signature.items()))).encode()}
    return LoweredKernel(files | code.files, rule)


def _script(module: tvm.IRModule) -> bytes:
    """The scheduled functions as TVMScript."""
    functions = list(module.functions.values())
    text: str = functions[0].script() if len(functions) == 1 else module.script()
    return (text.rstrip() + "\n").encode()


def _unscheduled(function: tirx.PrimFunc, unit: Unit, failures: list[str]) -> LoweringError:
    """The error for a function that is not scheduled, and that no rule could schedule."""
    if not has_blocks(function):
        return LoweringError(
            "the function is written as plain loops: its body needs blocks with axes, or loops bound to threads",
            unit.where,
            "put the innermost statements into a block, as the example does, so that TVM's rules can schedule them; or "
            'bind the loops by hand: for i in T.thread_binding(256, thread="threadIdx.x")',
            BLOCK,
        )
    return LoweringError(
        "the function has no thread bindings, and none of TVM's rules could schedule it for the GPU",
        unit.where,
        "schedule it by hand: with T.thread_binding in TVMScript, or with tvm.s_tir.Schedule",
        "\n".join(failures),
    )


def _lowering_error(error: Exception, unit: Unit) -> LoweringError:
    text = f"{type(error).__name__}: {error}".strip()
    return LoweringError(
        f"TVM cannot lower the function for {unit.target} ({unit.arch}): {first_line(error)}",
        unit.where,
        detail=text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + "\n[cut]",
    )


def in_passed_dtypes(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with dtypes of numbers that TVM's host code can take. Names stay the same.

    ``signature.json`` has the dtypes of the definition: it is made of the arguments before this.
    """
    params, values = list(function.params), {}
    for position, parameter in enumerate(params):
        if tirx.buffer.is_buffer_var(parameter) or not isinstance(parameter.ty, tvm.ir.PrimType):
            continue
        dtype = str(parameter.ty.dtype)
        if passed_as(dtype) != dtype:
            params[position] = tirx.Var(parameter.name, passed_as(dtype))
            values[parameter] = tirx.Cast(dtype, params[position])
    if not values:
        return function
    body = tvm_ffi.structural_map(function.body, (tvm.ir.Var, lambda variable: values.get(variable, variable)))
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs, function.span)


def assumed(function: tirx.PrimFunc, multiples: Mapping[str, int], unit: Unit) -> tirx.PrimFunc:
    """The function with each of the sizes written as a multiple.

    Arguments:
        multiples: size symbol -> what its values are multiples of.

    Raises:
        DefinitionError: a symbol is not a size of an input, where callers' arrays could be compared with it.
    """
    pairs = [(*_symbol(function, name, unit), number) for name, number in multiples.items()]

    def replaced(variable: Any) -> Any:
        found = (_rounded(symbol, told, number) for symbol, told, number in pairs if variable.same_as(symbol))
        return next(found, variable)

    body = tvm_ffi.structural_map(function.body, (tvm.ir.Var, replaced))
    return tirx.PrimFunc(function.params, body, function.ret_type, function.attrs, function.span)


def asserted(function: tirx.PrimFunc, multiples: Mapping[str, int], unit: Unit) -> tirx.PrimFunc:
    """The scheduled function with an assertion in front for each size, which its host code makes before it launches."""
    checks = [_check(*_symbol(function, name, unit), number, unit) for name, number in multiples.items()]
    body = tirx.SeqStmt([*checks, function.body])
    return tirx.PrimFunc(function.params, body, function.ret_type, function.attrs, function.span)


def _check(symbol: Any, told: Line, number: int, unit: Unit) -> tirx.AssertStmt:
    name = str(told.name)
    what, remedy = f"size {name}", f"pass arrays of such sizes, or list 1 for {name} in divisible"
    if (stride := stride_of(name)) != name:
        what = re.sub(r'Stride."(.*)", (\d+).', r"stride of \1 in dimension \2", stride)
        remedy = "pass an array of such a stride"
    message = f"kernel '{unit.kernel}': the {what} is not a multiple of {number}\n  remedy: {remedy}"
    rest = tirx.FloorMod(_less(symbol, told.plus), _number(symbol, told.times * number))
    passes = tirx.EQ(rest, _number(symbol, 0))
    # TVM 0.27 documents another order of these arguments.
    return tirx.AssertStmt(passes, tvm.ir.StringImm("ValueError"), [tvm.ir.StringImm(message)])


def _rounded(symbol: Any, told: Line, number: int) -> Any:
    step = _number(symbol, told.times * number)
    return _less(tirx.FloorDiv(_less(symbol, told.plus), step) * step, -told.plus)


def _less(size: Any, plus: int) -> Any:
    return size - _number(size, plus) if plus else size


def _number(symbol: Any, value: int) -> Any:
    return tirx.IntImm(symbol.ty.dtype, value)


def _symbol(function: tirx.PrimFunc, name: str, unit: Unit) -> tuple[Any, Line]:
    """The variable that tells a symbol, and how."""
    sizes: list[Any] = []
    outputs = unit.named([str(parameter.name) for parameter in function.params])
    for parameter in function.params:
        if tirx.buffer.is_buffer_var(parameter) and str(parameter.name) not in outputs:
            sizes += [size for size in (*parameter.shape, *parameter.strides) if isinstance(size, tvm.ir.Var)]
        elif isinstance(parameter.ty, tvm.ir.PrimType) and "int" in str(parameter.ty.dtype):
            sizes.append(parameter)
    telling = {told.name: (size, told) for size in reversed(sizes) for told in [told_by(size)]}
    if name not in telling:
        names = ", ".join(dict.fromkeys(stride_of(str(told_by(size).name)) for size in sizes)) or "there are none"
        message = f"divisible names {name!r}, which is no size, stride or integer of an input (those are: {names})"
        remedy = "name a variable that is a whole dimension or stride of an input, or an integer argument"
        if stride_of(name) != name:  # a descriptor names it
            message = f"{stride_of(name)} has to be a multiple of a number, and no input tells it"
            remedy = "declare the output without strides; or take it out of outputs and give it written=True"
        raise DefinitionError(message, unit.where, remedy)
    return telling[name]
