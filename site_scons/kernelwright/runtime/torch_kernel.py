"""The kernels of this package as operators of PyTorch: registered once, with shape functions and autograd rules.

An operator has up to two forms: one returns new outputs, and the overload ``out`` writes into outputs that it gets. A
form has a function in Python that calls the library through tvm-ffi, and a function for fake tensors, which compares
the call with the manifest (see ``arguments.py``) and computes the shapes of the outputs.

PyTorch first calls an operator's function for autograd. That passes the call on to what is below: a tracer, or the
function for the device. A second pass through PyTorch's dispatcher takes two microseconds. So if the dispatch keys of
the call say that only the device is below, the function for the device is called at once.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn

import torch

from .arguments import Signatures
from .dtype import name_of_torch, torch_dtype
from .expected import Described
from .interface import UNSIGNED, VIEW, backward_of, in_order, is_symbolic, kind_of, plain_number, unsigned_of
from .refusal import BY_KERNEL, because, refusal_of
from .torch_names import NameWithoutVersion, namespace_of

DEVICES = {"cpu": "llvm", "cuda": "cuda"}
"""Kind of device -> target; tensors on others (``meta``) may fit a variant of any target."""

BACKEND_KEYS = (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)
"""The dispatch keys that come first if only the device is below."""


class TorchKernel:
    """A kernel of this package, for type checkers: a function with these attributes."""

    variants: tuple[dict[str, Any], ...]
    """The configs that are built, in order; the first is the default."""

    devices: frozenset[str]
    """The kinds of devices that it is built for: ``"cpu"``, ``"cuda"``."""

    op: Any
    """The operator, ``torch.ops.<package>_<version>.<kernel>`` and ``torch.ops.<package>.<kernel>``; its overloads are
    ``default`` and ``out``."""

    variant: Callable[..., Any]
    """``variant(**config)``: the first variant whose config has these values, as operators of its own; a KeyError, if
    there is none."""

    choice: Callable[..., Any]
    """``choice(*arguments)``: which variant a call with these arguments runs, and why, as ``variant``, ``config`` and
    ``reason`` of an object; nothing runs."""

    supported: Callable[..., bool]
    """``supported(device="cpu")``: whether the kernel has code that the device, and its driver, can run."""

    preload: Callable[..., None]
    """``preload(device="cpu")``: loads the device code ahead of the first call, for example before a graph is captured;
    a RuntimeError, if the device or its driver cannot run the kernel."""


def load(loader: Any, name: str, entry: dict[str, Any]) -> Any:
    """Register the operators of a kernel, unless that is done.

    Arguments:
        loader: the ``Loader`` of the package.
        name: the kernel's name.
        entry: its part of the manifest.

    Returns:
        A function, with the attributes of :class:`TorchKernel`.

    Raises:
        ImportError: a file is missing or was altered, or another build of the package has registered its operators,
            or another library has one of that name in ``torch.ops.<package>``.
    """
    loader.verified(f"backends/torch/_{name}.py")
    module = import_module(f".backends.torch._{name}", loader.package)
    kernel = loader.through("kernel.py", name)
    backward = loader.through("torch_kernel.py", entry["backward"]) if entry.get("backward") else None
    return _registered(Operators(loader, entry, kernel, backward), module.define)


def _registered(operators: Operators, define: Callable[[Operators], Any]) -> Any:
    """Register a kernel's operators, once in a process even if the package is imported again; return its function."""
    state = vars(getattr(torch.ops, operators.namespace)).setdefault("_kernelwright", {})
    with state.setdefault("lock", threading.RLock()):
        digest, function = state.get(operators.name, (operators.digest, None))
        if digest != operators.digest:
            raise ImportError(
                f"kernel {operators.name!r}: another build of {operators.loader.package!r} has registered its "
                f"operators in torch.ops.{operators.namespace}\n  remedy: start a new Python process"
            )
        if function is None:
            names = NameWithoutVersion(operators.loader, operators.kernel.name, operators.name)
            names.require_free()
            function = operators.finished(define(operators), define)
            state[operators.name] = digest, function
            names.offer(function.op)
        return function


class Operators:
    """The operators of a kernel, or of one variant of it.

    Arguments:
        loader: of the package.
        entry: the kernel's part of the manifest.
        kernel: its object of tvm-ffi, or that of a variant.
        backward: the function of its backward kernel, or None.
    """

    def __init__(self, loader: Any, entry: dict[str, Any], kernel: Any, backward: Any) -> None:
        self.loader = loader
        self.entry = entry
        self.kernel = kernel
        self.backward = backward
        self.index: int | None = kernel._index
        self.name = kernel.name if self.index is None else f"{kernel.name}__{self.index}"
        self.namespace = namespace_of(f"{loader.package}_{loader.version}")
        self.digest = hashlib.sha256(json.dumps([kernel.name, entry], sort_keys=True).encode()).hexdigest()
        self.signatures = Signatures(kernel.name, entry)
        arguments = [argument for variant in entry["variants"] for argument in variant["arguments"]]
        self.written = {argument["name"] for argument in arguments if argument["written"]}
        self.strided = {argument["name"] for argument in arguments if "strides" in argument}
        self._unsigned = unsigned_of(entry)
        self.plain_number = plain_number
        self.alignment = max(argument.get("alignment") or 1 for argument in arguments)
        self.run = kernel.function
        self.wrote = _increment_version()
        self.is_grad_enabled = torch.is_grad_enabled
        self._plain: set[int] = set()
        self.is_plain = self._plain.__contains__
        library: Any = torch.library.Library  # which has no types
        self._library = library(self.namespace, "FRAGMENT")
        self._new: Any = None

    # ---- registration

    def define(
        self, overload: str, schema: str, call: Callable[..., Any], differentiable: Callable[..., Any] | None = None
    ) -> Any:
        """Register one form of the operator.

        Arguments:
            overload: its name, or empty.
            schema: its arguments and results, as PyTorch writes them.
            call: the function that runs it.
            differentiable: the function that PyTorch calls first, for autograd; None: ``call`` does that.

        Returns:
            The operator.
        """
        name = f"{self.name}.{overload}" if overload else self.name
        self._library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CPU", "CUDA"):
            self._library.impl(name, call, key)
        if differentiable is not None:
            self._library.impl(name, differentiable, "Autograd", with_keyset=True)
        torch.library.register_fake(f"{self.namespace}::{name}", self._fake, lib=self._library)
        operator = getattr(getattr(getattr(torch.ops, self.namespace), self.name), overload or "default")
        if differentiable is not None:
            self._new = operator
        return operator

    def finished(self, function: Any, define: Callable[[Operators], Any]) -> Any:
        """Give the function that callers see its attributes."""

        def variant(**config: Any) -> Any:
            kernel = self.kernel.variant(**config)
            backward = backward_of(kernel, self.backward)
            return _registered(Operators(self.loader, self.entry, kernel, backward), define)

        function.__module__ = f"{self.loader.package}.backends.torch"
        function.__qualname__ = self.kernel.name
        function.__doc__ = self.entry["doc"]
        function.op = getattr(getattr(torch.ops, self.namespace), self.name)
        function.variants, function.devices = self.kernel.variants, self.kernel.devices
        function.operators, function.choice = self, self.choice
        function.variant, function.supported, function.preload = variant, self.kernel.supported, self.kernel.preload
        return function

    # ---- shapes

    def _fake(self, *arguments: Any) -> Any:
        """The outputs of a valid call, without data: PyTorch calls this in place of the kernel while it traces."""
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        writes = len(arguments) == len(self.signatures.names)
        if writes and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            self.refuse_gradient(*arguments)
        target = DEVICES.get(tensors[0].device.type) if tensors else None
        try:
            names = self._passed(len(arguments))
            values = zip(names, map(self.decoded, names, arguments), strict=True)
            passed = [_described(value, name in self.strided) for name, value in values]
            chosen = self.signatures.choose(passed, self.index, target)
        except (TypeError, ValueError) as error:
            self.kernel._note_miss(arguments, error)
            raise
        if writes:
            return None
        made = [
            torch.empty(shape, dtype=torch_dtype(dtype), device=tensors[0].device) for dtype, shape in chosen.outputs()
        ]
        return made[0] if len(made) == 1 else tuple(made)

    # ---- numbers

    def refuse_none(self, name: str) -> NoReturn:
        """Raise the error for None in place of a number that has no default."""
        self._refuse(TypeError, f"argument '{name}' is None, expected a number")

    def encoded(self, name: str, value: Any) -> Any:
        """A uint64 in the form that operators of PyTorch take, which have signed integers only.

        Raises:
            TypeError: it is no integer.
            ValueError: it does not fit uint64.
        """
        number = plain_number(value)
        if is_symbolic(number):
            return number
        if not isinstance(number, int):
            self._refuse(TypeError, f"argument '{name}' is {number!r}, expected an int")
        if not 0 <= number < UNSIGNED:
            self._refuse(ValueError, f"argument '{name}' is {number}, which does not fit uint64")
        return number if number < UNSIGNED // 2 else number - UNSIGNED

    def decoded(self, name: str, value: Any) -> Any:
        """A number from an operator, in the form that the kernel takes; undoes :meth:`encoded`."""
        return value % UNSIGNED if name in self._unsigned and not is_symbolic(value) else value

    # ---- calls that are not plain

    def repeat(self, error: Exception, *arguments: Any) -> Any:
        """Run a failed call again: with copies of tensors that are not contiguous or not aligned, or with a variant
        that is compiled on demand.

        Only tensors that the kernel does not write are copied. In a compiled program such tensors are usual.

        Raises:
            ValueError: the kernel writes such a tensor.
            Exception: the error, if it has another cause.
        """
        usable = self._copied(arguments)
        if all(one is other for one, other in zip(usable, arguments, strict=True)):
            return self.kernel._missed(arguments, error)
        try:
            return self.run(*usable)
        except Exception as failure:
            return self.kernel._missed(usable, failure)

    def in_order(self, positional: Sequence[Any], named: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments of a call by position; see the function of that name."""
        items = self.entry["variants"][0]["arguments"]
        return in_order(self.signatures.kernel, items, positional, named, self.signatures.optional)

    def explain(self, error: Exception, arguments: Sequence[Any]) -> NoReturn:
        """Raise the error of a call, or a clearer one: PyTorch's errors name an operator that callers do not know.

        Arguments:
            arguments: all, or the inputs; outputs that were left out may be None.

        Raises:
            Exception: the error, unless one of the arguments is the cause.
            TypeError: an argument has to be a tensor of PyTorch, and is none; or the kernel writes a computed view.
        """
        if refusal_of(error) or len(arguments) not in (len(self.signatures.names), len(self._passed(-1))):
            raise error
        items = {item["name"]: item for item in self.entry["variants"][0]["arguments"]}
        for name, value in zip(self._passed(len(arguments)), arguments, strict=True):
            may_be_none = items[name]["output"] or name in self.signatures.optional
            if items[name]["kind"] != "tensor" or (value is None and may_be_none):
                continue
            if not isinstance(value, torch.Tensor):
                remedy = f"pass torch.as_tensor({name}), or call the kernel through another backend"
                text = f"argument '{name}' is a {kind_of(value)}, expected a tensor of PyTorch"
                raise because(
                    TypeError(f"kernel '{self.signatures.kernel}': {text}\n  remedy: {remedy}"), BY_KERNEL
                ) from error
            if name in self.written and (value.is_neg() or value.is_conj()):
                remedy = "pass a tensor of its own"
                self._refuse(TypeError, f"argument '{name}' is {VIEW}, and the kernel writes it\n  remedy: {remedy}")
        raise error

    def choice(self, *passed: Any, **named: Any) -> Any:
        """Which variant a call with these arguments runs, and why; nothing runs.

        Raises:
            TypeError, ValueError, RuntimeError: the call would; see ``Kernel.choice``.
        """
        arguments = self.in_order(passed, named)
        usable = [
            not isinstance(value, torch.Tensor) or self._is_usable(name, value)
            for name, value in zip(self._passed(len(arguments)), arguments, strict=False)
        ]
        strided = any(isinstance(one, torch.Tensor) and not one.is_contiguous() for one in arguments)
        if self.strided or not strided:
            try:
                return self.kernel.choice(*arguments)
            except ValueError:
                if all(usable):
                    raise
        return self.kernel.choice(*self._copied(arguments))

    def _copied(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments of a call, with copies in place of tensors that are not contiguous or not aligned.

        Raises:
            ValueError: the kernel writes such a tensor.
        """
        names = self._passed(len(arguments))
        usable = list(arguments)
        for position, (name, tensor) in enumerate(zip(names, arguments, strict=True)):
            if not isinstance(tensor, torch.Tensor) or self._is_usable(name, tensor):
                continue
            if name in self.written:
                self._refuse(
                    ValueError,
                    f"argument '{name}' is not contiguous, or not aligned to {self.alignment} bytes, and the kernel "
                    "writes it\n  remedy: pass a contiguous tensor, or leave outputs out of the call to get new ones",
                )
            usable[position] = tensor.clone(memory_format=torch.contiguous_format)
        return usable

    def _is_usable(self, name: str, tensor: torch.Tensor) -> bool:
        return (name in self.strided or tensor.is_contiguous()) and not tensor.data_ptr() % self.alignment

    def _passed(self, count: int) -> list[str]:
        """The names of the ``count`` arguments of a call: all, or else the inputs."""
        names, outputs = self.signatures.names, self.signatures.outputs
        return [name for name in names if count == len(names) or name not in outputs]

    def _refuse(self, kind: type[Exception], text: str) -> NoReturn:
        self.signatures.refuse(kind, text)

    # ---- autograd

    def refuse_gradient(self, *arguments: Any) -> NoReturn:
        """Raise the error for a call that writes its arguments while PyTorch records.

        Raises:
            RuntimeError: always.
        """
        names = self._passed(len(arguments))
        needing = [n for n, a in zip(names, arguments, strict=True) if isinstance(a, torch.Tensor) and a.requires_grad]
        self._refuse(
            RuntimeError,
            f"argument '{needing[0]}' requires a gradient, and a call that writes its arguments has none\n  remedy: "
            + (
                "leave the outputs out of the call"
                if len(names) > len(self._passed(-1))
                else f"pass {needing[0]}.detach()"
            )
            + ", or call it under torch.no_grad()",
        )

    def differentiate(self, keys: Any, *arguments: Any) -> Any:
        """Run a call that is traced, or whose outputs need a gradient.

        Raises:
            RuntimeError: an argument that the kernel writes requires a gradient, or ``torch.func`` asks for one.
        """
        below = keys & torch._C._after_autograd_keyset
        if below.highestPriorityTypeId() in BACKEND_KEYS:
            self._plain.add(keys.raw_repr())
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors):
            with torch._C._AutoDispatchBelowAutograd():
                return self._new.redispatch(below, *arguments)
        for name, argument in zip(self._passed(len(arguments)), arguments, strict=True):
            if name in self.written and argument is not None and argument.requires_grad:
                self.refuse_gradient(*arguments)
        if torch._C._are_functorch_transforms_active():
            self._refuse(
                RuntimeError,
                "torch.func cannot differentiate an operator with rules in Python (PyTorch 2.13)\n  remedy: use "
                "torch.autograd.grad",
            )
        apply: Any = _Differentiable.apply
        return apply(self, *arguments)

    def below(self, arguments: Sequence[Any]) -> Any:
        """Hand a call on to what is below autograd."""
        with torch._C._AutoDispatchBelowAutograd():
            return self._new(*arguments)

    def gradients(self, context: Any, grads: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The gradients of the inputs, by the backward kernel.

        Raises:
            RuntimeError: there is none, or it does not compute one that is needed.
        """
        if self.backward is None:
            self._refuse(
                RuntimeError,
                "it has no backward kernel, and a gradient goes through it\n  remedy: declare one with "
                f"@{self.kernel.name}.backward, or call it under torch.no_grad()",
            )
        operators: Operators = self.backward.operators
        inputs = self._passed(-1)
        values = {name: self.decoded(name, value) for name, value in context.scalars.items()}
        values |= dict(zip(context.names, context.saved_tensors, strict=True))
        values |= {f"grad_{name}": grad for name, grad in zip(self.signatures.outputs, grads, strict=True)}
        result = self.backward(*(values[name] for name in operators._passed(-1)))
        computed = operators.signatures.outputs
        made = dict(zip(computed, result if len(computed) > 1 else [result], strict=True))
        for name, needed in zip(inputs, context.needs_input_grad[1:], strict=True):
            if needed and f"grad_{name}" not in made:
                self._refuse(
                    RuntimeError,
                    f"its backward kernel computes no gradient of argument '{name}', which requires one\n  remedy: add "
                    f"the output grad_{name} to it, or pass {name}.detach()",
                )
        return [made.get(f"grad_{name}") for name in inputs]


class _Differentiable(torch.autograd.Function):
    """A call of a kernel that autograd records."""

    @staticmethod
    def forward(operators: Operators, *arguments: Any) -> Any:
        """Run it."""
        return operators.below(arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the values that the backward kernel takes."""
        operators, *arguments = inputs
        results = output if isinstance(output, tuple) else (output,)
        ctx.operators = operators
        ctx.mark_non_differentiable(*(r for r in results if not (r.is_floating_point() or r.is_complex())))
        if operators.backward is not None:
            values = dict(zip(operators._passed(len(arguments)), arguments, strict=True))
            values |= dict(zip(operators.signatures.outputs, results, strict=True))
            wanted = operators.backward.operators._passed(-1)
            tensors = {n: v for n, v in values.items() if n in wanted and isinstance(v, torch.Tensor)}
            ctx.names = list(tensors)
            ctx.scalars = {n: v for n, v in values.items() if n in wanted and n not in tensors}
            ctx.save_for_backward(*tensors.values())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradients of all arguments of ``forward``."""
        return (None, *ctx.operators.gradients(ctx, grads))


def _increment_version() -> Callable[[Any], None]:
    """The function that tells autograd that some tensors were written.

    PyTorch's public function is in Python, and takes longer than the function that it calls. In older versions of
    PyTorch the latter takes one tensor.
    """

    def one_by_one(tensors: tuple[torch.Tensor, ...]) -> None:
        for tensor in tensors:
            torch.autograd.graph.increment_version(tensor)

    inner: Callable[[Any], None] = torch._C._increment_version
    try:
        inner((torch.empty(0),))
    except TypeError:
        return one_by_one
    return inner


def _described(argument: Any, has_strides: bool) -> Described:
    if not isinstance(argument, torch.Tensor):
        return Described(value=argument)
    # Of a tensor that has to be compact the kernel gets a compact copy.
    strides = tuple(argument.stride()) if has_strides and argument.layout is torch.strided else None
    return Described(name_of_torch(argument.dtype), tuple(argument.shape), device=str(argument.device), strides=strides)
