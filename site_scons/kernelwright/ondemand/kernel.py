"""What ``@kernel`` makes: a kernel that is declared, and that can be compiled and called."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import DefinitionError, Where
from ..define.kernel import Kernel
from .definition import Compilable

if TYPE_CHECKING:
    from .origin import Origin


@dataclass(eq=False)
class OnDemandKernel(Compilable, Kernel):
    """A kernel that is declared in this process.

    If it is a definition of a project's file, it is compiled from that file, by workers; otherwise, as in a notebook, a
    script or a test, it is lowered in this process.
    """

    program: Any = field(default=None, init=False, repr=False)
    """The program that the definition returns, where there is no other definition."""

    _file: Path | None = field(default=None, init=False, repr=False)

    def __repr__(self) -> str:
        return f"<kernel {self.name} of {self.location}>"

    def _origin(self) -> Origin:
        self._refuse_in_worker()
        path = self._definition_file()
        if path is not None:
            from .files import FileKernel

            found = FileKernel(path, self.name, self._options)
            try:
                return found._origin()
            finally:
                self._watched = found._watched
        from .live import origin_of

        self._snapshot()
        return origin_of(self, self._options)

    def _refuse_in_worker(self) -> None:
        """Raise a DefinitionError in a worker: there, a definition file is read, and its kernels are not called."""
        if "kernelwright.worker.server" in sys.modules:
            raise DefinitionError(
                f"kernel {self.name!r} was called inside its definition file",
                Where(self.name, location=self.location),
                "call it elsewhere, or below: if __name__ == '__main__'",
            )

    def _definition_file(self) -> Path | None:
        """See :func:`definition_file`; a file that was found stays, because every eager call asks."""
        if self._file is None:
            self._file = definition_file(self)
        return self._file

    def _source_file(self) -> Path | None:
        return self._definition_file()

    def _definition(self) -> Kernel:
        return self

    def _snapshot(self) -> tuple[Any, ...]:
        if self.program is not None:
            return ()
        if self._definition_file() is not None:
            return super()._snapshot()
        from .live import snapshot

        return snapshot(self.function)


def definition_file(kernel: Kernel) -> Path | None:
    """The file that a kernel is compiled from; None: it is in no file that a worker could execute.

    That is so for what a test file declares, too: pytest changes its code, and its imports need what pytest sets up.
    """
    module = sys.modules.get(kernel.function.__module__)
    path = getattr(module, "__file__", None)
    if module is None or path is None or module.__name__ == "__main__":
        return None
    # The functions are compared, because using() makes copies of a kernel.
    if getattr(vars(module).get(kernel.name), "function", None) is not kernel.function:
        return None
    loader = type(getattr(module, "__loader__", None)).__module__
    if loader.startswith("_pytest") or kernel.function.__code__.co_filename != path or not os.path.isfile(path):  # noqa: PTH113
        return None
    from .project import project_of

    return Path(path) if project_of(Path(path)) else None


kernel = OnDemandKernel.declare
