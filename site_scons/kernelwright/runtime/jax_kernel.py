"""The kernels of this package as functions of JAX: custom calls of XLA, through jax-tvm-ffi.

JAX's arrays cannot be written, so a call takes inputs and returns new arrays: the kernel's outputs, and then the new
contents of the inputs that the kernel writes. XLA copies such an input first if it is used elsewhere.

Numbers are attributes of the custom call, so they are part of the compiled program: each new value compiles it again.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax_tvm_ffi  # type: ignore[import-untyped]
import numpy as np
import tvm_ffi

from .arguments import Signatures
from .expected import Described
from .interface import UNSIGNED, Interface, backward_of, in_order, kind_of, plain_number, unsigned_of

PLATFORMS = {"cpu": "cpu", "cuda": "gpu"}
"""Kind of device -> the platform of jax-tvm-ffi."""

ABSENT = "kw_absent"
"""The attribute of a custom call that says which inputs are None. XLA passes arrays only."""

WIDE = frozenset({"float64", "int64", "uint64", "complex128"})
"""The dtypes that JAX has only with ``jax_enable_x64``."""


def load(loader: Any, name: str, entry: dict[str, Any]) -> JaxKernel:
    """Register the custom calls of a kernel, unless that is done, and return its object.

    Arguments:
        loader: the ``Loader`` of the package.
        name: the kernel's name.
        entry: its part of the manifest.

    Raises:
        ImportError: a file is missing or was altered, or another build of the package has registered its kernels.
    """
    kernel = loader.through("kernel.py", name)
    backward = loader.through("jax_kernel.py", entry["backward"]) if entry.get("backward") else None
    return JaxKernel(loader, entry, kernel, backward)


class JaxKernel(Interface):
    """A kernel, or one variant of it.

    Call it with its inputs to get its outputs: one array, or a tuple. It works under ``jax.jit`` and ``jax.vmap``, and
    with ``jax.grad`` if the definition has a backward kernel.
    """

    def __init__(self, loader: Any, entry: dict[str, Any], kernel: Any, backward: JaxKernel | None) -> None:
        self.name = kernel.name
        self._loader: Any = loader
        self._entry = entry
        self._kernel = kernel
        self._backward = backward
        self._index = kernel._index
        self._signatures = Signatures(kernel.name, entry)
        arguments = entry["variants"][0]["arguments"]
        written = {a["name"] for variant in entry["variants"] for a in variant["arguments"] if a["written"]}
        self._inputs = [a["name"] for a in arguments if not a["output"]]
        self._optional = self._signatures.optional
        self._scalars = [a["name"] for a in arguments if a["kind"] == "scalar"]
        self._has_none = not {*self._optional} <= {*self._scalars}
        self._floats = {a["name"] for a in arguments if "float" in a["dtype"]}
        self._arrays = [name for name in self._inputs if name not in self._scalars]
        self._unsigned = unsigned_of(entry)
        self._made = [a["name"] for a in arguments if a["output"]]
        self._updated = [name for name in self._arrays if name in written]
        self._variants: dict[int, JaxKernel] = {}
        self.__name__ = self.__qualname__ = kernel.name
        self.__doc__ = entry["doc"]
        self.target = self._registered()
        self._run = jax.jit(self._differentiable() if backward else self._call, static_argnums=0)

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        """Run the kernel, with its inputs by position or by name.

        Raises:
            TypeError: the number of arguments, a kind, a dtype or a rank does not fit, or a number is traced by JAX.
            ValueError: sizes do not fit, a number is out of range, or a dtype needs ``jax_enable_x64``.
        """
        arguments = self._by_position(arguments, named)
        numbers, arrays = [], []
        for name, argument in zip(self._inputs, arguments, strict=True):
            if name in self._scalars:
                numbers.append(self._number(name, argument))
            else:
                arrays.append(self._array(name, argument))
        return self._run(tuple(numbers), *arrays)

    def _of_variant(self, index: int) -> JaxKernel:
        known = self._variants.get(index)
        if known is None:
            kernel = self._kernel._of_variant(index)
            made = JaxKernel(self._loader, self._entry, kernel, backward_of(kernel, self._backward))
            known = self._variants.setdefault(index, made)
        return known

    def choice(self, /, *arguments: Any, **named: Any) -> Any:
        """Which variant a call with these arguments runs, and why; nothing runs.

        Returns:
            An object with ``variant``, ``config`` and ``reason``.

        Raises:
            TypeError, ValueError, RuntimeError: the call would; see ``Kernel.choice``.
        """
        arguments = self._by_position(arguments, named)
        pairs = zip(self._inputs, arguments, strict=True)
        values = [
            _value(self._number(name, value)) if name in self._scalars else self._array(name, value)
            for name, value in pairs
        ]
        return self._kernel._choice_for(tuple(values))

    def supported(self, device: Any = "cpu") -> bool:
        """Whether this kernel has code that the device, and its driver, can run."""
        return bool(self._kernel.supported(device))

    def preload(self, device: Any = "cpu") -> None:
        """Load the device code ahead of the first call.

        Raises:
            RuntimeError: the device, or its driver, cannot run the kernel; the message says why.
            ValueError: the kernel is not built for devices of that kind.
        """
        self._kernel.preload(device)

    def __repr__(self) -> str:
        return f"<JAX {super().__repr__()[1:]}"

    # ---- the custom call

    def _registered(self) -> str:
        """Register the custom call, once in a process even if the package is imported again; return its name."""
        name = self._kernel.name if self._index is None else f"{self._kernel.name}__{self._index}"
        target = re.sub(r"\W", "_", f"{self._loader.package}_{self._loader.version}", flags=re.ASCII) + f".{name}"
        digest = hashlib.sha256(json.dumps([name, self._entry], sort_keys=True).encode()).hexdigest()
        state = vars(jax_tvm_ffi).setdefault("_kernelwright", {})
        with state.setdefault("lock", threading.RLock()):
            if state.get(target, digest) != digest:
                raise ImportError(
                    f"kernel {name!r}: another build of {self._loader.package!r} has registered its custom call "
                    f"{target}\n  remedy: start a new Python process"
                )
            if target not in state:
                function, places = self._function()
                for device in sorted(self.devices):
                    jax_tvm_ffi.register_ffi_target(
                        target,
                        self._kernel.for_xla(function) if device == "cuda" else function,
                        places,
                        PLATFORMS[device],
                        pass_owned_tensor=function is not self._kernel.function,
                    )
                state[target] = digest
        return target

    def _function(self) -> tuple[Any, list[str]]:
        """The function that the custom call calls, and the order in which jax-tvm-ffi passes the arguments to it.

        jax-tvm-ffi passes all inputs in a row, and all outputs in a row. If the kernel has another order, a function in
        Python puts them in place.
        """
        arguments = self._entry["variants"][0]["arguments"]
        kinds = [
            "rets" if a["output"] else f"attrs.{a['name']}" if a["name"] in self._scalars else "args" for a in arguments
        ]
        places = [kind for number, kind in enumerate(kinds) if number == 0 or kinds[number - 1] != kind]
        # Inputs that are written are among the results of the custom call too, behind the outputs.
        in_order = len(set(places)) == len(places) and not (self._updated and self._signatures.outputs)
        if in_order and not self._unsigned and not self._has_none:
            return self._kernel.function, places
        attributes = [*self._scalars, *([ABSENT] if self._has_none else [])]
        return tvm_ffi.convert(self._in_its_order), [*(f"attrs.{name}" for name in attributes), "args", "rets"]

    def _in_its_order(self, *passed: Any) -> None:
        """Call the kernel with arguments that come as all numbers, then all inputs, then all outputs.

        Behind the numbers is one that says which inputs are None, if some may be: a bit for each.
        """
        absent = passed[len(self._scalars)] if self._has_none else 0
        arrays = [name for number, name in enumerate(self._arrays) if not absent >> number & 1]
        names = [*self._scalars, *([ABSENT] if self._has_none else []), *arrays, *self._made]
        values: dict[str, Any] = dict.fromkeys(self._arrays) | dict(
            zip(names, passed, strict=False)
        )  # after these, the inputs that are written come once more
        values |= {name: values[name] % UNSIGNED for name in self._unsigned}
        self._kernel.function(*(values[name] for name in self._signatures.names))

    def _call(self, numbers: tuple[Any, ...], *arrays: Any) -> Any:
        """The custom call, in a program that is being traced."""
        values = dict(zip(self._scalars, map(_value, numbers), strict=True))
        passed = {name: Described(value=value) for name, value in values.items()}
        passed |= {name: _described(array) for name, array in zip(self._arrays, arrays, strict=True)}
        try:
            chosen = self._signatures.choose([passed[name] for name in self._inputs], self._index)
        except (TypeError, ValueError) as error:
            given = values | dict(zip(self._arrays, arrays, strict=True))
            self._kernel._note_miss([given[name] for name in self._inputs], error)
            raise
        outputs = self._signatures.outputs
        made = dict(zip(outputs, chosen.outputs(), strict=True))
        for name, (dtype, _) in made.items():
            self._check_width(f"output '{name}'", dtype)
        # The library writes them in the order of its arguments.
        results = [_result(shape, dtype) for dtype, shape in map(made.__getitem__, self._made)]
        present = {name: array for name, array in zip(self._arrays, arrays, strict=True) if array is not None}
        updated = [name for name in self._updated if name in present]
        aliases = {list(present).index(name): len(made) + number for number, name in enumerate(updated)}
        results += [_result(present[name].shape, present[name].dtype) for name in updated]
        if self._has_none:
            values[ABSENT] = sum(1 << number for number, array in enumerate(arrays) if array is None)
        call = jax.ffi.ffi_call(
            self.target, tuple(results), vmap_method="sequential", input_output_aliases=aliases or None
        )
        written = call(*present.values(), **{name: _attribute(value) for name, value in values.items()})
        by_name = dict(zip([*self._made, *updated], written, strict=True))
        returned = tuple(by_name.get(name) for name in (*outputs, *self._updated))
        return returned[0] if len(returned) == 1 else returned

    # ---- gradients

    def _differentiable(self) -> Callable[..., Any]:
        """The call with its rule for reverse-mode differentiation."""
        call: Any = jax.custom_vjp(self._call, nondiff_argnums=(0,))
        call.defvjp(self._forward, self._gradients, symbolic_zeros=True)
        differentiable: Callable[..., Any] = call
        return differentiable

    def _forward(self, numbers: tuple[Any, ...], *primals: Any) -> tuple[Any, Any]:
        backward = self._backward
        arrays = [None if primal is None else primal.value for primal in primals]
        computed = backward._signatures.outputs if backward else ()
        for name, primal in zip(self._arrays, primals, strict=True):
            if primal is not None and primal.perturbed and f"grad_{name}" not in computed:
                self._signatures.refuse(
                    TypeError,
                    f"its backward kernel computes no gradient of argument '{name}', which is asked for\n  remedy: add "
                    f"the output grad_{name} to it, or pass jax.lax.stop_gradient({name})",
                )
        result = self._call(numbers, *arrays)
        return result, (arrays, result if isinstance(result, tuple) else (result,))

    def _gradients(self, numbers: tuple[Any, ...], kept: Any, grads: Any) -> tuple[Any, ...]:
        arrays, results = kept
        values: dict[str, Any] = dict(zip(self._scalars, map(_value, numbers), strict=True))
        values |= dict(zip(self._arrays, arrays, strict=True)) | dict(
            zip(self._signatures.outputs, results, strict=False)
        )
        incoming = grads if isinstance(grads, tuple) else (grads,)
        for name, grad in zip(self._signatures.outputs, incoming, strict=False):
            values[f"grad_{name}"] = _materialized(grad)
        backward = self._backward
        made = backward(*(values[name] for name in backward._inputs)) if backward else ()
        computed = backward._signatures.outputs if backward else ()
        by_name = dict(zip(computed, made if len(computed) > 1 else [made], strict=True))
        return tuple(
            None if array is None else by_name.get(f"grad_{name}", _zero(array))
            for name, array in zip(self._arrays, arrays, strict=True)
        )

    # ---- arguments

    def _by_position(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        if named or (self._optional and len(arguments) < len(self._inputs)):
            inputs = [{"name": name, "output": False} for name in self._inputs]
            arguments = in_order(self._kernel.name, inputs, arguments, named, self._optional)
        if len(arguments) != len(self._inputs):
            self._refuse_count(len(arguments))
        return arguments

    def _number(self, name: str, value: Any) -> Any:
        """A number as part of the program: hashable, and floats with different bits differ."""
        if isinstance(value, jax.core.Tracer):
            self._signatures.refuse(
                TypeError,
                f"argument '{name}' is traced by JAX, and has to be a number when the program is compiled\n  remedy: "
                f"make it static, as in jax.jit(f, static_argnames='{name}')",
            )
        value = self._optional.get(name) if value is None else value
        number = plain_number(value) if getattr(value, "shape", ()) == () else value
        if not isinstance(number, (int, float)):
            text = f"argument '{name}' is a {kind_of(value)}, expected a number"
            self._signatures.refuse(TypeError, f"{text}\n  remedy: pass a number of Python or NumPy")
        if name in self._floats:
            number = self._signatures.real(name, number)
        if isinstance(number, int) and not -(2**63) <= number < (UNSIGNED if name in self._unsigned else 2**63):
            text = f"argument '{name}' is an int of {number.bit_length()} bits, which is too large for its type"
            self._signatures.refuse(ValueError, f"{text}\n  remedy: pass a smaller number")
        return ("float", number.hex()) if isinstance(number, float) else number

    def _array(self, name: str, value: Any) -> Any:
        if isinstance(value, jax.Array) or (value is None and name in self._optional):
            return value
        if not isinstance(value, (np.ndarray, np.generic)):
            text = f"argument '{name}' is a {kind_of(value)}, expected an array of JAX or NumPy"
            self._signatures.refuse(TypeError, f"{text}\n  remedy: pass jax.numpy.asarray({name})")
        self._check_width(f"argument '{name}'", str(value.dtype))
        return value

    def _check_width(self, subject: str, dtype: str) -> None:
        config: Any = jax.config
        if dtype in WIDE and not config.jax_enable_x64:
            self._signatures.refuse(
                ValueError,
                f"{subject} is {dtype}, which JAX has only with jax_enable_x64\n  remedy: "
                'jax.config.update("jax_enable_x64", True) at the start, or another dtype',
            )

    def _refuse_count(self, count: int) -> NoReturn:
        expected = ", ".join(self._inputs)
        text = f"takes {len(self._inputs)} arguments ({expected}), {count} were given"
        more = "\n  remedy: leave the outputs out; they are returned" if count > len(self._inputs) else ""
        self._signatures.refuse(TypeError, text + more)


def _described(array: Any) -> Described:
    return Described() if array is None else Described(str(array.dtype), tuple(array.shape))


def _value(number: Any) -> Any:
    return float.fromhex(number[1]) if isinstance(number, tuple) else number


def _attribute(value: Any) -> Any:
    """A number in the type of an attribute that jax-tvm-ffi understands."""
    if isinstance(value, bool):
        return np.bool_(value)
    # jax-tvm-ffi has no unsigned integers.
    return np.float64(value) if isinstance(value, float) else np.int64(value if value < 2**63 else value - UNSIGNED)


def _result(shape: tuple[int, ...], dtype: Any) -> Any:
    struct: Any = jax.ShapeDtypeStruct
    return struct(shape, jax.numpy.dtype(dtype))


def _materialized(grad: Any) -> Any:
    """An incoming gradient as an array, also where JAX knows that it is zero."""
    if hasattr(grad, "aval"):
        return grad
    return jax.numpy.zeros(grad.shape, grad.dtype)


def _zero(array: Any) -> Any:
    """The gradient of an input that has none."""
    if jax.numpy.issubdtype(array.dtype, jax.numpy.inexact):
        return jax.numpy.zeros(array.shape, array.dtype)
    return np.zeros(array.shape, jax.dtypes.float0)
