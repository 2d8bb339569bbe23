"""The names of operators in ``torch.ops``: one with the version of the package, and the same one without it."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import torch


def namespace_of(name: str) -> str:
    """A name in the form of PyTorch's namespaces."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)


class NameWithoutVersion:
    """The name ``torch.ops.<package>.<kernel>`` of an operator.

    It is the same object of Python as the operator with the version in its name, and no second operator. So what
    PyTorch traces, exports and keeps has the name with the version, and never runs the code of another version.

    Arguments:
        loader: of the package, which has its name, version and folder.
        kernel: the kernel's name.
        name: that of the operator, which may be one variant of the kernel.
    """

    def __init__(self, loader: Any, kernel: str, name: str) -> None:
        self._loader = loader
        self._kernel = kernel
        self._name = name
        self._namespace = getattr(torch.ops, namespace_of(loader.package))
        kept = vars(self._namespace).setdefault("_kernelwright_versions", {})
        # Operator, with its version -> that version, and where it is. Several packages may have written it.
        self._versions: dict[str, str] = kept.setdefault(name, {})

    def require_free(self) -> None:
        """Refuse a name that another library uses.

        Raises:
            ImportError: another library has registered an operator of this name.
        """
        if not self._versions and hasattr(self._namespace, self._name):
            raise ImportError(
                f"kernel {self._kernel!r}: another library has registered {self._path}, which is a name of this kernel "
                f"of {self._loader.package!r}\n  remedy: rename the kernel, or do not load that library"
            )

    def offer(self, operator: Any) -> None:
        """Let the name be this operator; if other versions of the package are in the process, let it be an error."""
        self._versions[str(operator)] = f"{self._loader.version} ({self._loader.folder})"
        is_alone = len(self._versions) == 1
        setattr(self._namespace, self._name, operator if is_alone else SeveralVersions(self._error()))

    @property
    def _path(self) -> str:
        return f"torch.ops.{self._namespace.name}.{self._name}"

    def _error(self) -> str:
        listed, named = " and ".join(self._versions.values()), " or ".join(f"torch.ops.{one}" for one in self._versions)
        return (
            f"kernel {self._kernel!r}: {self._path} could be that of version {listed}, which are in one process"
            f"\n  remedy: write {named}, or let the process import one version only"
        )


class SeveralVersions:
    """What a name is that operators of several versions have: an error.

    Arguments:
        text: what any use of it raises as a RuntimeError.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __call__(self, *passed: Any, **named: Any) -> NoReturn:
        """Raise the error."""
        raise RuntimeError(self._text)

    def __getattr__(self, name: str) -> NoReturn:
        """Raise the error, but for what Python itself looks for in any object."""
        raise (AttributeError if name.startswith("__") else RuntimeError)(self._text)
