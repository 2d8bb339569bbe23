"""Compiles a Program with Triton, in a worker or in a process of an environment that has nothing of ours or TVM's.

Written for Triton 3.9.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.arch import SHARED_MEMORY, arch_order, real_arch
from ...core.errors import DefinitionError, KernelwrightError, LoweringError, ToolchainError, Where
from ...define.arguments import Scalar, Tensor, Workspace
from ...define.debug import NO
from ...define.declared import first_difference
from ...define.divisible import SPECIALIZED as DIVISIBILITY
from ...define.sizes import Size, divisor_of
from ..raised import MAX_MESSAGE, first_line, line_of
from ..unit import Unit
from .descriptor import TensorDescriptor
from .heuristics import multiples_in, resolved
from .program import DTYPES, ENVIRONMENT, NEED, VERSION, Passed, Program

ARCHS = tuple(SHARED_MEMORY)
"""The archs that Triton makes code for: from 9.0 on with the suffix ``a`` only. For others, LLVM ends the process."""

SCRATCH_ALIGNMENT = 256
"""Alignment in bytes of memory that the driver gives."""

CONSTANT = "Cannot store to a constant pointer"
"""Triton's message for a store to a pointer to constants."""


@dataclass(frozen=True)
class Compiled:
    """What Triton made for one arch.

    Arguments:
        arch: such as ``sm_90a``.
        name: that of the device function.
        cubin, ptx: the device code.
        source: Triton's IR, without places in files.
        threads: of a block.
        shared: dynamic shared memory of a block, in bytes.
        scratch: global memory for each block, in bytes.
        descriptors: how it copies by each tensor descriptor that it gets; none: by pointers.
        report: what ptxas said.
    """

    arch: str
    name: str
    cubin: bytes = b""
    ptx: str = ""
    source: str = ""
    threads: int = 0
    shared: int = 0
    scratch: int = 0
    descriptors: Sequence[Mapping[str, Any]] = ()
    report: str = ""


def compiled(program: Program, unit: Unit, progress: Callable[[str], None]) -> tuple[dict[str, Any], list[Compiled]]:
    """The options that a Program has with its heuristics, and what Triton makes of it for each arch, in order.

    Arguments:
        program: what the definition returned, with a function.
        unit: what is being lowered, with the names of the outputs.
        progress: called with what is about to be done.

    Raises:
        DefinitionError: its function is none of Triton's, or its arguments do not fit.
        LoweringError: Triton cannot compile it, or it needs what a launch of ours does not have.
        ToolchainError: Triton is not installed, or another release of it.
    """
    program, unit = resolved(program, unit)
    program.check_options(unit.where)  # a heuristic may have chosen one
    compiler = _ProgramCompiler(program, unit)
    undecided = compiler.require_written()
    results = compiler.results(progress)
    if undecided:
        raise undecided
    return program.options, results


class Compiler:
    """Compiles one function for the archs of a unit.

    Arguments:
        function: of Triton.
        options: of the compilation.
        unit: what is being lowered.

    Raises:
        ToolchainError: Triton is not installed, or another release of it.
    """

    def __init__(self, function: Any, options: Mapping[str, Any], unit: Unit) -> None:
        self._unit = unit
        self._function = function
        self._options = {"debug": bool(function.debug), **options}

    def _source(self) -> Any:
        """What is compiled: a source of Triton's."""
        raise NotImplementedError

    def results(self, progress: Callable[[str], None]) -> list[Compiled]:
        """The code for each arch, in order.

        Raises:
            LoweringError: Triton cannot compile it, or makes what needs more than our launches have.
        """
        results = []
        for arch in sorted({real_arch(arch) for arch in self._unit.archs}, key=arch_order):
            progress(f"compiling for {arch} (Triton)")
            results.append(self.compile(arch))
        return results

    def compile(self, arch: str) -> Compiled:
        """Compile for one arch.

        Raises:
            LoweringError: Triton cannot, or makes what needs more than our launches have.
        """
        require_arch(arch, self._unit.where)
        try:
            compiled, printed = self._compile(arch)
        except (KeyboardInterrupt, SystemExit, KernelwrightError):
            raise
        except BaseException as error:  # it runs the user's code, and its own errors have many types
            raise _compile_error(error, arch, self._unit) from error
        metadata = compiled.metadata
        self._require_supported(metadata)
        source = re.sub(r" loc\((?:[^()\"]|\"[^\"]*\"|\([^()]*\))*\)|^#loc.*\n", "", compiled.asm["ttir"], flags=re.M)
        code = compiled.asm["cubin"], compiled.asm["ptx"]
        launch = 32 * metadata.num_warps, metadata.shared, metadata.global_scratch_size
        described = tuple(metadata.tensordesc_meta or ())
        return Compiled(arch, metadata.name, *code, source, *launch, described, printed)

    def _compile(self, arch: str) -> tuple[Any, str]:
        """What Triton returns, and what ptxas has printed."""
        import triton
        from triton.backends.compiler import GPUTarget

        target = GPUTarget("cuda", arch_order(arch)[0], 32)
        with ptxas_printing(self._unit.debug) as printed:
            compiled = triton.compile(self._source(), target=target, options=dict(self._options))
        return compiled, printed.getvalue()

    def _require_supported(self, metadata: Any) -> None:
        if metadata.profile_scratch_size:
            message = "the function needs profile scratch memory, for instrumentation, which launches here do not have"
            raise LoweringError(message, self._unit.where, "leave the instrumentation out")
        if metadata.global_scratch_align > SCRATCH_ALIGNMENT:
            message = f"the function needs memory that is aligned to {metadata.global_scratch_align} bytes"
            raise LoweringError(message, self._unit.where, f"{SCRATCH_ALIGNMENT} bytes is what launches here have")


@contextlib.contextmanager
def ptxas_printing(debug: str) -> Iterator[io.StringIO]:
    """Have Triton keep nothing, leave out lines, and show what ptxas prints; the text of that is yielded.

    Arguments:
        debug: as of :class:`Unit`; unless it is ``no``, lines are kept.
    """
    from triton import knobs

    with contextlib.ExitStack() as stack:
        if debug != NO:
            stack.enter_context(_portable_lines())
        for group in (knobs.cache, knobs.compilation, knobs.nvidia):
            stack.enter_context(group.scope())
        # Its cache is in the home folder, and no part of our build.
        knobs.cache.dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="kernelwright-"))
        knobs.compilation.disable_line_info = debug == NO
        knobs.nvidia.dump_ptxas_log = True
        yield stack.enter_context(contextlib.redirect_stdout(io.StringIO()))


@contextlib.contextmanager
def _portable_lines() -> Iterator[None]:
    """Have lines name sources as every machine does: as seen from the project's folder, or from Python's; and without
    times and sizes of files, which ptxas would write."""
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.compiler.code_generator import CodeGenerator

    begin, assemble = CodeGenerator.__init__, CUDABackend.make_cubin

    def named(self: Any, *arguments: Any, file_name: str, **others: Any) -> None:
        installed = re.search(r"/(?:site|dist)-packages/(.*)", file_name)
        name = installed[1] if installed else os.path.relpath(file_name)  # a worker is in the project's folder
        begin(self, *arguments, file_name=name, **others)

    def undated(self: Any, src: str, *arguments: Any) -> bytes:
        # With a time of 0 ptxas looks for the file, and takes its time.
        cubin: bytes = assemble(self, re.sub(r'^(\s*\.file\s+\d+ ".*")$', r"\1, 1, 0", src, flags=re.M), *arguments)
        return cubin

    CodeGenerator.__init__, CUDABackend.make_cubin = named, undated
    try:
        yield
    finally:
        CodeGenerator.__init__, CUDABackend.make_cubin = begin, assemble


def source_text(head: str, results: Iterable[Compiled]) -> str:
    """The Triton IR of one function for several archs, behind a line that says what it is of."""
    archs: dict[str, list[str]] = {}
    for result in results:
        archs.setdefault(result.source, []).append(result.arch)
    return f"// {head}\n" + "".join(f"// ---- for {', '.join(n)} ----\n{source}" for source, n in archs.items())


class _ProgramCompiler(Compiler):
    """Compiles one program.

    Raises:
        DefinitionError: its function is none of Triton's, or has other parameters.
        ToolchainError: Triton is not installed, or another release of it.
    """

    def __init__(self, program: Program, unit: Unit) -> None:
        require_release(unit.where)
        self._program = program
        function = _function_of(program, unit.where)
        self._arguments = _arguments_of(program, function, unit.where)
        super().__init__(function, program.options, unit)

    def require_written(self) -> DefinitionError | None:
        """Raise a DefinitionError if the function stores to a tensor that the definition does not say is written.

        Returns the error to raise if that cannot be told, and the function can be compiled all the same.

        Triton's front end refuses that for pointers to constants. The code itself is made with plain ones: with the
        others, Triton 3.9 cannot translate tensor descriptors.
        """
        import triton
        from triton._C.libtriton import ir
        from triton.backends.compiler import GPUTarget

        target = GPUTarget("cuda", arch_order(self._unit.arch)[0], 32)
        backend, context = triton.compiler.make_backend(target), ir.context()
        options = backend.parse_options(dict(self._options))
        for dialects in (ir, backend):
            dialects.load_dialects(context)
        implementation = backend.get_codegen_implementation(options), backend.get_module_map()
        try:
            with _constants_told_apart():
                self._source(with_constants=True).make_ir(target, options, *implementation, context)
        except Exception as error:
            problem = _compile_error(error, self._unit.arch, self._unit)
            if CONSTANT in str(problem.detail):
                message = "it stores to a tensor that is no output, and that the definition does not say is written"
                remedy = "add it to outputs, or write Tensor(..., written=True)"
                raise DefinitionError(message, problem.where, remedy, problem.detail) from error
            # Such as a pointer that is one to an output in one branch, and to an input in the other.
            message = "it cannot be told whether it stores to a tensor that is no output"
            remedy = "write Tensor(..., written=True) for each tensor that it may write"
            return DefinitionError(message, problem.where, remedy, problem.detail)
        return None

    def _source(self, *, with_constants: bool = False) -> Any:
        """What is compiled.

        Arguments:
            with_constants: whether pointers to tensors that are not written are ones to constants.
        """
        from triton.compiler import ASTSource

        arguments, passed = self._arguments, self._program.passed
        kinds = {name: self._kind(name, value, with_constants) for name, value in passed.items()}
        signature = {name: kinds.get(name, "constexpr") for name, _ in arguments}
        constants = {name: value for name, value in arguments if name not in passed}
        divisible = [["tt.divisibility", DIVISIBILITY]]
        attributes = {(at,): divisible for at, (name, value) in enumerate(arguments) if self._is_divisible(name, value)}
        return ASTSource(self._function, signature, constants, attributes)

    def _kind(self, name: str, value: Passed, with_constants: bool) -> str:
        """The type of a parameter as Triton has it."""
        kind = DTYPES[value.dtype]
        tensor = self._program.declared.get(name)
        is_read = isinstance(tensor, Tensor) and not tensor.written and name not in self._unit.outputs
        kind = f"k{kind}" if with_constants and is_read else kind
        if isinstance(value, TensorDescriptor):
            return f"tensordesc<{kind}{list(value.block_shape)}>"
        return f"*{kind}" if isinstance(value, (Tensor, Workspace)) else kind

    def _is_divisible(self, name: str, value: Any) -> bool:
        if isinstance(value, Workspace):
            return True  # memory that is allocated is aligned to more than that
        if isinstance(value, Tensor):
            return value.alignment is not None and value.alignment % DIVISIBILITY == 0
        multiples = multiples_in(self._program, self._unit)
        size = Size(name) if isinstance(value, Scalar) else value
        return isinstance(size, Size) and divisor_of(size, multiples) % DIVISIBILITY == 0


@contextlib.contextmanager
def _constants_told_apart() -> Iterator[None]:
    """Make Triton's front end distinguish pointers to constants from other pointers, also in descriptors.

    Written for Triton 3.9. In its names of functions both kinds are one, so a call would get what was made for an
    earlier one. It has no constants behind descriptors. In its IR, they are in a memory of their own, and it then
    prints that it cannot load bool from there.
    """
    from triton import language
    from triton.compiler import code_generator
    from triton.language import core
    from triton.language.semantic import TritonSemantic

    pointer, descriptor = core.pointer_type, core.tensor_descriptor_base_type
    plain = pointer.mangle, descriptor.mangle, TritonSemantic.make_tensor_descriptor
    type_of = language.str_to_ty

    def describe(self: Any, base: Any, *others: Any) -> Any:
        descriptor_of_base = plain[2](self, base, *others)
        descriptor_of_base.type.block_type.is_constant = base.type.is_const()
        return descriptor_of_base

    def storing(way: Callable[..., Any]) -> Callable[..., Any]:
        def store(self: Any, target: Any, *others: Any) -> Any:
            if _is_of_constants(target.type):
                raise ValueError(CONSTANT)
            return way(self, target, *others)

        return store

    def typed(name: Any, *others: Any) -> Any:
        is_constant = isinstance(name, str) and name.startswith("tensordesc<k")
        kind = type_of(name.replace("<k", "<") if is_constant else name, *others)
        if is_constant:
            kind.block_type.is_constant = True
        return kind

    stores = [name for name in vars(TritonSemantic) if re.match("descriptor_(store|scatter|atomic)", name)]
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in (
            (pointer, "to_ir", lambda self, builder: builder.get_ptr_ty(self.element_ty.to_ir(builder), "global")),
            (pointer, "mangle", lambda self: ("K" if self.const else "") + plain[0](self)),
            (descriptor, "mangle", lambda self: ("K" if _is_of_constants(self) else "") + plain[1](self)),
            (TritonSemantic, "make_tensor_descriptor", describe),
            (code_generator, "str_to_ty", typed),
            *((TritonSemantic, name, storing(getattr(TritonSemantic, name))) for name in stores),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, replacement)
        yield


def _is_of_constants(kind: Any) -> bool:
    """Whether a type of descriptors is that of one which was made of a pointer to constants."""
    return getattr(kind.block_type, "is_constant", False)


def require_arch(arch: str, where: Where) -> None:
    """Raise a LoweringError unless Triton makes code for an arch."""
    if arch in ARCHS:
        return
    remedy = f"restrict the kernel to others with archs=[...]; it knows {', '.join(ARCHS)}, and PTX of these"
    if f"{arch}a" in ARCHS:
        remedy = f"write {arch}a: from 9.0 on, Triton's code uses what only that arch has"
    raise LoweringError(f"Triton {VERSION} makes no code for {arch}", where, remedy)


def require_release(where: Where) -> None:
    """Raise a ToolchainError unless Triton of the releases that this module is written for is installed."""
    try:
        import triton
    except ImportError as error:
        raise ToolchainError(f"Triton cannot be imported: {error}", where, ENVIRONMENT.remedy) from error
    if not ENVIRONMENT.knows(triton.__version__):
        message = f"Triton {triton.__version__} is installed, and the launches of Triton {VERSION} are known"
        raise ToolchainError(message, where, NEED.install)


def _function_of(program: Program, where: Where) -> Any:
    """The function of a program; raises a DefinitionError if it is none that Triton compiles as it is."""
    from triton.runtime.jit import JITFunction

    function = program.function
    if not isinstance(function, JITFunction) or function.is_gluon():
        message = f"the Program's function is of type {type(function).__module__}.{type(function).__qualname__}"
        raise DefinitionError(message, where, "pass a function that is decorated with @triton.jit")
    return function


def _arguments_of(program: Program, function: Any, where: Where) -> list[tuple[str, Any]]:
    """The parameters of the function and what they get, in its order; those that are left out get their defaults.

    Raises:
        DefinitionError: the program has other names, or passes them in another order.
    """
    given, parameters = program.arguments, [parameter.name for parameter in function.params]
    left_out = {p.name: p.default for p in function.params if p.name not in given and p.has_default}
    passed = [name for name in parameters if name in program.passed]
    if different := first_difference({**given, **left_out}, parameters, list(program.passed), passed):
        raise DefinitionError(
            f"the arguments of the Program are not the parameters of its function {function.__name__}: {different}",
            where,
            "give both the same names in the same order; only parameters with a default can be left out. "
            "What @triton.autotune would choose is given, too: make it points with tune=configs_of(function)",
        )
    for parameter in function.params:
        if parameter.is_constexpr and parameter.name in program.passed:
            kind = type(given[parameter.name]).__name__
            message = f"the parameter {parameter.name!r} of {function.__name__} is a constexpr, and gets a {kind}"
            raise DefinitionError(message, where, "give it a plain value")
        if parameter.name in program.passed:
            _require_annotated(parameter, program.passed[parameter.name], where)
    return [(name, given[name] if name in given else left_out[name]) for name in parameters]


def _require_annotated(parameter: Any, value: Passed, where: Where) -> None:
    """Raise a DefinitionError if an annotation says another type: for a call, Triton compiles for the annotated one."""
    kind = f"{'*' if isinstance(value, (Tensor, Workspace)) else ''}{DTYPES[value.dtype]}"
    annotated = parameter.annotation_type.replace("*k", "*")
    if annotated and annotated != kind:
        what = f"the parameter {parameter.name!r} is annotated as {annotated}, and gets a {type(value).__name__}"
        remedy = "give it that dtype, or change the annotation"
        raise DefinitionError(f"{what} of dtype {value.dtype}, which is {kind}", where, remedy)


def _compile_error(error: BaseException, arch: str, unit: Unit) -> LoweringError:
    """The error for what Triton, or the user's code in it, has raised: at the user's line."""
    cause = error
    while cause.__cause__ is not None and hasattr(cause.__cause__, "node"):
        cause = cause.__cause__
    text = str(getattr(cause, "error_message", None) or _text_of_line(cause) or cause).strip()
    return LoweringError(
        f"Triton cannot compile it for {arch}: {first_line(error, text)}",
        Where(unit.kernel, unit.slug, "lower", _line_in_source(cause) or line_of(error, "triton") or unit.location),
        "mend that line of the definition",
        f"{type(cause).__name__}: {cause}"[:MAX_MESSAGE],
    )


def _text_of_line(error: BaseException) -> str:
    """The line that Triton was at: an assertion without a message says nothing else."""
    number, lines = getattr(getattr(error, "node", None), "lineno", 0), (getattr(error, "src", None) or "").splitlines()
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def _line_in_source(error: BaseException) -> str | None:
    """The line that Triton was at, in the file of the function that it was in."""
    from triton.runtime.jit import _triton_jit_function_registry as registry

    node, source = getattr(error, "node", None), getattr(error, "src", None)
    for function in registry.values():
        if node is not None and function.src == source and hasattr(node, "lineno"):
            return f"{function.file_name}:{function.def_file_line_number + node.lineno - 1}"
    return None
