"""Loads a library that registers operators with PyTorch, and finds these in ``torch.ops``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .loader import Loader


def load(loader: Loader, name: str, entry: Mapping[str, Any]) -> Operators:
    """The operators of a kernel, after its library has registered them.

    Raises:
        ImportError: this PyTorch is not the one that the library needs, or it has operators of these names already.
    """
    described, subject = entry["operators"], f"kernel {name!r} of {loader.package!r}"
    _require_torch(described, subject)
    known = set(torch._C._dispatch_get_all_op_names())
    # PyTorch would end the process.
    taken = [f"operator {name}" for name in sorted(known.intersection(described["registered"]))]
    taken += [f"namespace {name}" for name in described["namespaces"] if not _is_free(name)]
    if taken:
        message = f"{subject} registers the {taken[0]}, which this process has already"
        raise ImportError(f"{message}\n  remedy: import one of the packages that register it, or rename its namespace")
    try:
        ops: Any = torch.ops
        ops.load_library(str(loader.library(name)))
    except OSError as error:
        remedy = f"pip install '{described['torch']}'"
        raise ImportError(f"{subject} cannot be loaded: {error}\n  remedy: {remedy}") from error
    return Operators(name, entry, {each: _operator(each) for each in described["names"]})


def _require_torch(described: Mapping[str, Any], subject: str) -> None:
    """Raise an ImportError for a PyTorch that a library was not built for."""
    requirement, here = described["torch"], torch.__version__
    wanted, has = _numbers(requirement), _numbers(here)
    if has != wanted if "==" in requirement else has < wanted:
        wants = f"was built with PyTorch {described['built_with']} and needs {requirement}"
        remedy = f"pip install '{requirement}', or a wheel of the package for this PyTorch"
        raise ImportError(f"{subject} {wants}, and this is PyTorch {here}\n  remedy: {remedy}")
    if described["needs_cuda"] and torch.version.cuda is None:
        remedy = f"install '{requirement}' for CUDA, as pytorch.org says"
        raise ImportError(f"{subject} needs PyTorch with CUDA, and this is PyTorch {here}\n  remedy: {remedy}")


def _is_free(namespace: str) -> bool:
    """Whether the process has no TORCH_LIBRARY block of a namespace yet."""
    try:
        torch._C._dispatch_library("DEF", namespace, "")
    except RuntimeError:
        return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    """Major and minor version in a text."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def _operator(name: str) -> Any:
    """An operator, by its name, such as ``acme::silu`` or ``acme::silu.out``."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops, namespace), packet)
    return getattr(found, overload) if overload else found


class Operators:
    """The operators of a kernel, as attributes: ``acme::silu`` is ``silu``, ``acme::silu.out`` is ``silu_out``.

    Arguments:
        name: the kernel's.
        entry: its part of the manifest.
        operators: the operators by their full names.
    """

    devices = ("cpu", "cuda")

    def __init__(self, name: str, entry: Mapping[str, Any], operators: Mapping[str, Any]) -> None:
        self.__name__ = name
        self.__doc__ = entry["doc"]
        self.operators = operators
        self.schemas = {each: entry["operators"]["registered"][each]["schema"] for each in operators}
        self._by_name = {each.rpartition("::")[2].replace(".", "_"): one for each, one in operators.items()}

    if not TYPE_CHECKING:  # a type checker finds the operators in the stub, and names that are none

        def __getattr__(self, name: str) -> Any:
            known: Mapping[str, Any] = self.__dict__.get("_by_name", {})
            if name not in known:
                subject = f"kernel {self.__dict__.get('__name__')!r}"
                raise AttributeError(f"{subject} has no operator {name!r}; it has {', '.join(known)}")
            return known[name]

    def __repr__(self) -> str:
        return f"<kernel {self.__name__} with the operators {', '.join(self.operators)}>"

    def __copy__(self) -> Operators:
        return self

    def __deepcopy__(self, memo: Any) -> Operators:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(f"kernel {self.__name__} cannot be pickled; import it where it is used")

    def __dir__(self) -> list[str]:
        return sorted([*self._by_name, "operators", "preload", "schemas"])

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the operator, if the kernel names one only."""
        if len(self._by_name) != 1:
            message = f"kernel {self.__name__!r} has several operators, and is called by their names"
            raise TypeError(f"{message}: {', '.join(self._by_name)}")
        return next(iter(self._by_name.values()))(*arguments, **named)

    def preload(self, device: Any = "cpu") -> None:
        """Do nothing: the operators are registered. CUDA loads their device code at the first launch.

        Raises:
            ValueError: there are no devices of that kind.
        """
        if str(device).partition(":")[0] not in self.devices:
            raise ValueError(f"unknown device {device!r}; expected 'cpu', 'cuda' or 'cuda:N'")
