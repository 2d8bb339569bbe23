"""What ``@kernel`` makes: a kernel that is declared, and that can be compiled and called."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import frontends
from ..core.arch import TARGETS
from ..core.errors import DefinitionError, Where
from ..define.kernel import Kernel, decorator
from ..define.kernel_options import Declaration
from .definition import Compilable
from .origin import Origin

if TYPE_CHECKING:
    from .files import FileKernel
    from .watched import Watch


@dataclass(eq=False)
class OnDemandKernel(Compilable, Kernel):
    """A kernel that is declared in this process.

    If it is a definition of a project's file, it is compiled from that file, by workers; otherwise, as in a notebook, a
    script or a test, it is lowered in this process.
    """

    program: Any = field(default=None, init=False, repr=False)
    """The program that is compiled, if the user gave a program and no definition."""

    _of_file: FileKernel | None = field(default=None, init=False, repr=False)
    _root: Path | None = field(default=None, init=False, repr=False)
    """The project's folder. It is found at the first use, with ``_of_file``, and both stay then."""

    @classmethod
    def possible_targets(cls, frontend: str) -> Sequence[str]:
        """See :meth:`Kernel.possible_targets`; those of plug-ins are not asked here, where a definition is executed."""
        return frontends.get(frontend).targets if frontend in frontends.names() else TARGETS

    def __repr__(self) -> str:
        return f"<kernel {self.name} of {self.location}>"

    def _place(self) -> tuple[Path, FileKernel | None]:
        """The project's folder; and the kernel of the file, if that is what is compiled."""
        if self._root is None:
            from .files import FileKernel
            from .project import root_of_live

            path = definition_file(self)
            if path is not None:
                self._of_file = FileKernel(path, self.name, self._options)
            self._root = self._of_file.root if self._of_file is not None else root_of_live(self.location)
        if self._of_file is None:
            return self._root, None
        of_file = copy(self._of_file)  # kernels that using() makes share it, and have other options
        of_file._options = self._options
        return self._root, of_file

    def _origin(self, watch: Watch | None = None) -> Origin:
        self._refuse_in_worker()
        root, of_file = self._place()
        if of_file is not None:
            return of_file._origin(watch)
        from .live import origin_of

        return origin_of(self, self._options, root)

    def _refuse_in_worker(self) -> None:
        """Raise a DefinitionError in a worker: there, a definition file is read, and its kernels are not called."""
        if "kernelwright.worker.server" in sys.modules:
            raise DefinitionError(
                f"kernel {self.name!r} was called inside its definition file",
                Where(self.name, location=self.location),
                "call it elsewhere, or below: if __name__ == '__main__'",
            )

    def _source_file(self) -> Path | None:
        _, of_file = self._place()
        return None if of_file is None else of_file._source_file()

    def _definition(self, origin: Origin) -> AbstractContextManager[Kernel]:
        _, of_file = self._place()
        return nullcontext(self) if of_file is None else of_file._definition(origin)

    def _watch(self, before: Watch | None = None) -> Watch:
        from .reached import Reached, reached_by
        from .watched import Watch

        root, of_file = self._place()
        if of_file is not None:
            return of_file._watch(before)
        backward = self.backward_kernel
        functions = [self.function, *([] if backward is None else [backward.function])]
        reached = Reached() if self.program is not None else reached_by(functions)
        return Watch(root, reached) if before is None else before.anew(reached)


def definition_file(kernel: Kernel) -> Path | None:
    """The file that a kernel is compiled from; None: it is in no file that a worker could execute.

    A kernel of a test file has none, either: pytest changes its code, and its imports need what pytest sets up.
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


kernel = decorator(OnDemandKernel, Declaration)
