"""What a backend is."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..core.errors import ToolchainError, Where
from ..core.need import Need
from ..core.plugins import BACKENDS, Plugin

if TYPE_CHECKING:
    from .commands import ToolPaths
    from .plan import KernelPlan


IN_FRAMEWORKS = (
    *("kernel.py", "interface.py", "refusal.py", "dlpack.py", "arguments.py"),
    *("expected.py", "rivals.py", "dtype.py", "size.py", "strides.py"),
)
"""Further modules of backends whose calls pass through a framework, which matches arguments in Python."""

RUNTIME_FOLDER = Path(__file__).resolve().parents[1] / "runtime"
"""The folder of the modules that are copied into packages."""


class Backend(Plugin):
    """How Python calls a kernel, and which files a kernel and its package need for that.

    Most backends call the kernel's library, which has a C function that checks the arguments, picks a variant and runs
    it (see ``library``). Such a backend only adds what calls that function.
    """

    kind = BACKENDS

    library: ClassVar[bool] = True
    """Whether it calls the kernel's library, so that there has to be one."""

    at_top: ClassVar[bool] = False
    """Whether its kernels are also in a module of its name at the top of the package."""

    versioned: ClassVar[bool] = False
    """Whether it needs to know the version of the project that the package belongs to."""

    hands_over: ClassVar[bool] = False
    """Whether it can call a kernel whose arguments are not declared, because it hands them through as they are."""

    images: ClassVar[bool] = False
    """Whether it loads device images from files of the package, ``_images/<kernel>/<slug>.<arch>.<cubin or ptx>``."""

    build_needs: ClassVar[tuple[Need, ...]] = ()
    """What has to be installed where kernels are built."""

    run_needs: ClassVar[tuple[Need, ...]] = ()
    """What has to be installed where kernels are called; in a wheel's metadata, an extra of the backend's name."""

    stub_types: ClassVar[Mapping[str, Any]] = {}
    """The types in the ``.pyi`` of its kernels, where they are not those of ``StubTypes``."""

    runtime: ClassVar[tuple[str, ...]] = ()
    """Modules of ``runtime/`` that are copied into the package as ``_runtime/``. The first one loads kernels: it has a
    function ``load(loader, name, entry)`` that returns the callable, where ``loader`` is the :class:`Loader` of the
    package and ``entry`` the kernel's part of the manifest. Those of a plug-in that are not there are in the folder
    ``runtime`` beside its module, and their names begin with its own."""

    def required(self) -> Sequence[Need]:
        """See :meth:`Plugin.required`."""
        return self.build_needs

    def told(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """See :meth:`Plugin.told`."""
        yield "the files of a kernel", self._require_names
        yield "the files of a package", partial(self.package_files, "package")

    def _require_names(self) -> None:
        """Raise a ValueError for names that a plug-in cannot give files: they are in the folder of its kernel."""
        for name in (*self.files("kernel"), *self.products("kernel")):
            if "/" in name or (name in self.products("kernel") and not name.startswith("_")):
                raise ValueError(f"{name!r} is a path, or does not begin with an underscore")
        for name in self.runtime:
            if not RUNTIME_FOLDER.joinpath(name).is_file() and not name.startswith(f"{self.name}_"):
                raise ValueError(f"{name!r}, a module that loads kernels, does not begin with {self.name}_")

    def runtime_sources(self) -> list[Path]:
        """The files of :attr:`runtime`."""
        own = Path(str(sys.modules[type(self).__module__].__file__)).parent / "runtime"
        return [path if (path := RUNTIME_FOLDER / name).is_file() else own / name for name in self.runtime]

    def require_build(self) -> None:
        """Check that all packages are installed that the build needs.

        Raises:
            ToolchainError: one is not; the message has the line that installs it.
        """
        for need in self.build_needs:
            if not need.is_installed:
                raise ToolchainError(
                    f"the backend {self.name} needs {need.name} where kernels are built",
                    Where(stage="settings"),
                    f"{need.install}, or take {self.name} out of backends",
                )

    def build_versions(self) -> dict[str, str]:
        """The versions of ``build_needs``, for fingerprints; a package that is not installed is left out."""
        if not self.build_needs:
            return {}
        # Imported here, because most builds with nothing to do need no versions.
        from importlib.metadata import PackageNotFoundError, version

        versions = {}
        for need in self.build_needs:
            with contextlib.suppress(PackageNotFoundError):
                versions[need.name] = version(need.name)
        return versions

    def check(self, kernel: KernelPlan) -> None:
        """Check that the kernel can be called through this backend.

        Raises:
            KernelwrightError: it cannot; the message says why, and what to do.
        """

    def emit(self, kernel: KernelPlan) -> dict[str, str]:
        """Write the files of one kernel, those of :meth:`files`.

        Arguments:
            kernel: the plan; paths in it are relative to the folder in which commands run.

        Returns:
            File name -> text; equal for equal plans.

        Raises:
            KernelwrightError: the kernel cannot be called through this backend.
        """
        return {}

    def files(self, kernel: str) -> tuple[str, ...]:
        """The names of the files that :meth:`emit` writes of a kernel, into :meth:`folder`."""
        return ()

    def folder(self, kernel: str) -> str:
        """The folder of these files, relative to the folder in which commands run."""
        return f"{kernel}/backends/{self.name}"

    def products(self, kernel: str) -> tuple[str, ...]:
        """The names of the files, emitted or compiled, that belong into the package, in its ``backends/<name>``."""
        return self.files(kernel)

    def package_files(self, package: str) -> tuple[str, ...]:
        """The names of the files that :meth:`emit_package` writes, below ``backends/<name>`` of the package.

        Arguments:
            package: its import name.
        """
        return ()

    def emit_package(self, package: str, version: str, kernels: Sequence[str]) -> dict[str, str]:
        """Write the files that a package has besides those of its kernels: those of :meth:`package_files`.

        Arguments:
            package: its import name.
            version: of the project that the package belongs to, if the backend is ``versioned``; empty: unknown.
            kernels: the names of its kernels that can be called through this backend, sorted.

        Returns:
            File name -> text; equal for equal arguments.
        """
        return {}

    def commands(self, kernel: str, paths: ToolPaths, output: str) -> tuple[list[str], ...]:
        """The commands that compile those products that are not emitted; none by default.

        Arguments:
            kernel: the kernel's name.
            paths: the compilers and folders that the commands name.
            output: the folder for the products, and for what is made on the way to them.
        """
        return ()

    def headers(self) -> list[Path]:
        """Files of ours that the commands read, and whose content therefore belongs into the stages' fingerprints."""
        return []

    def stub_imports(self, runtime: str) -> str:
        """The lines of a ``.pyi`` that import what :meth:`stub` uses; names begin with an underscore.

        Arguments:
            runtime: how the module refers to the package's ``_runtime``.
        """
        return f"from {runtime}.kernel import Kernel as _Kernel\n"

    def stub(self, kernel: str, entry: Mapping[str, Any]) -> str:
        """The kernel's part of the package's ``.pyi``: a class and a variable of the kernel's name.

        Arguments:
            entry: the kernel's part of the manifest.
        """
        from .stubs import StubTypes, kernel_stub

        return kernel_stub(kernel, entry, StubTypes(**self.stub_types))
