"""The base class of front ends. This module does not import TVM; a front end may import it inside of methods only."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ..core.arch import TARGETS, image_file, is_ptx
from ..core.errors import DefinitionError, Where
from ..core.need import Interpreter, Need, OwnEnvironment
from ..core.plugins import FRONT_ENDS, Plugin
from ..core.written import Written
from ..define.divisible import ALL
from ..define.pass_configs import PassConfigs

if TYPE_CHECKING:
    from ..define.kernel import Kernel
    from ..define.record import KernelRecord
    from ..define.settings import Settings
    from ..toolchain.distribution import Distribution
    from ..toolchain.elsewhere import Elsewhere
    from ..toolchain.probe import Toolchain
    from .unit import LoweredKernel, Unit

SIGNATURE = "signature.json"
"""The file that says what a lowering expects of its arguments; every front end makes it."""


@dataclass(frozen=True)
class LoweredFiles:
    """The names of the files that lowering a unit makes, besides ``signature.json``.

    Arguments:
        module: the source after lowering, for readers; the manifest has its digest.
        host: the host code: ``host.o``, which is linked, and ``host.c``, which the wrapper includes.
        source: the CUDA source of the device code; empty: there is none for a CUDA compiler.
        images: arch -> its device code, where the front end compiles that itself.
        usages: arch -> what the functions of its cubin use, as JSON.
        flags: a JSON list of the flags that the source needs of the CUDA compiler; empty: it needs none.
    """

    module: str
    host: tuple[str, ...]
    source: str = ""
    images: Mapping[str, str] = field(default_factory=dict)
    usages: Mapping[str, str] = field(default_factory=dict)
    flags: str = ""

    @classmethod
    def with_images(cls, module: str, host: tuple[str, ...], archs: tuple[str, ...]) -> LoweredFiles:
        """The names for a front end that compiles the device code of each arch itself."""
        usages = {arch: f"{arch}.json" for arch in archs if not is_ptx(arch)}
        return cls(module, host, "", {arch: image_file(arch) for arch in archs}, usages)

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, in a fixed order."""
        source = tuple(name for name in (self.source, self.flags) if name)
        return (self.module, SIGNATURE, *self.host, *source, *self.images.values(), *self.usages.values())


@dataclass(frozen=True)
class HeaderFolders:
    """Headers that come with the tool of a front end. Its identity stands for their contents.

    Arguments:
        folders: where the compiler looks for them, below the folder of the tool.
        standard: the standard of C++ that they are written in.
    """

    folders: tuple[str, ...]
    standard: str


class OwnTuner(NamedTuple):
    """A tuner of a language's own.

    Arguments:
        reason: what it tunes, for messages.
        remedy: how it is used.
    """

    reason: str
    remedy: str


class FrontEnd(Plugin):
    """A language of definitions: it recognises what they return, lowers it, and names the packages that this needs.

    The build asks for the attributes, :meth:`tool` and :meth:`files`; the other methods run in workers.
    """

    kind = FRONT_ENDS

    needs: ClassVar[tuple[Need, ...]] = ()
    """What has to be installed where kernels are built, besides TVM."""

    compiles_device_code: ClassVar[bool] = False
    """Whether lowering makes the device code of every arch itself, so that no CUDA compiler runs."""

    includes_sources: ClassVar[bool] = False
    """Whether the CUDA source includes files of the author's. Then the compiler looks into the definition's folder,
    and the compiled code tells what the function is called in it (:mod:`.entry_name`)."""

    header_folders: ClassVar[HeaderFolders | None] = None
    """The headers of its tool that the CUDA source includes."""

    own_environment: ClassVar[OwnEnvironment | None] = None
    """The environment of its compiler, if that has, or can have, one of its own."""

    backends: ClassVar[tuple[str, ...]] = ()
    """The only backends of its kernels, if it does not leave that to settings."""

    on_demand: ClassVar[bool] = True
    """Whether its kernels can be compiled on demand, for a call."""

    native_only: ClassVar[str] = ""
    """Why its kernels cannot be built for CPUs of another family than this machine's; empty: they can."""

    includes: ClassVar[tuple[str, ...]] = ()
    """Folders of headers that its sources include, as in ``@kernel(includes=[...])``; ``needs`` bring them."""

    first_includes: ClassVar[tuple[str, ...]] = ()
    """Folders of ours, whose headers stand before those of the same names in all other installed packages."""

    flags: ClassVar[tuple[str, ...]] = ()
    """Flags of nvcc for its sources, before those of the package and of the kernel."""

    debugs: ClassVar[tuple[str, ...]] = ()
    """The levels of ``debug`` that its compiler has, besides ``no`` (:mod:`define.debug`)."""

    has_host_code: ClassVar[bool] = False
    """Whether the kernel's sources have host code of their own: a compiler makes objects of them, which are linked."""

    imports_for_arch: ClassVar[bool] = False
    """Whether modules of its definitions may ask for the arch when they are imported. Then a process that lowers for
    one arch of several lowers for no other one."""

    has_sequences: ClassVar[bool] = False
    """Whether its definitions may return a list of several launches (:class:`.sequence.Launches`)."""

    may_be_opaque: ClassVar[bool] = False
    """Whether its definitions may have arguments that are not declared."""

    uses_multiples: ClassVar[bool] = True
    """Whether its compiler uses that a size is a multiple of a number (``@kernel(divisible={...})``)."""

    specializes: ClassVar[bool] = False
    """Whether it makes a variant for addresses and sizes that are multiples of 16 (``@kernel(specialize="auto")``)."""

    has_passes: ClassVar[bool] = False
    """Whether TVM's passes lower its definitions. Then they take configs of passes, and can show the IR after each."""

    interpreter: ClassVar[Interpreter | None] = None
    """The interpreter that runs its definitions on machines without a GPU, for checks."""

    returns: ClassVar[type]
    """The class of what a definition returns, unless :meth:`recognizes` says more."""

    lowering: ClassVar[str] = "lowering"
    """The module that lowers it, below the folder of the front end: its function ``lower`` is :meth:`lower`."""

    expects: ClassVar[str]
    """What a definition returns, for messages."""

    remedy: ClassVar[str]
    """How to return that, for messages."""

    writes: ClassVar[tuple[Written, ...]] = ()
    """What of others is in each of its kernels."""

    def tool(self, toolchain: Toolchain, settings: Settings) -> Distribution | Elsewhere | None:
        """The tool that lowering runs besides TVM: its version, and the identity that goes into fingerprints."""
        return None

    def required(self) -> Sequence[Need]:
        """See :meth:`Plugin.required`."""
        return self.needs

    def told(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """See :meth:`Plugin.told`."""
        for target in self.targets:
            yield f"its files for {target}", partial(self.files, target, ())

    def files(self, target: str, archs: tuple[str, ...]) -> LoweredFiles:
        """The files that lowering makes.

        Arguments:
            target: ``llvm`` or ``cuda``.
            archs: those of the unit; one, if the target is ``llvm``.
        """
        return (
            LoweredFiles("module.tir", ("host.o",))
            if target == "llvm"
            else LoweredFiles("module.tir", ("host.c",), "device.cu")
        )

    def check(self, kernel: Kernel, where: Where) -> None:
        """Raise a DefinitionError if a kernel has targets, flags or pass configs that this front end does not take."""
        for target in kernel.options.targets or ():
            if target in TARGETS and target not in self.targets:  # what is no target is found later, for all kernels
                message = f"a definition in {self.name} cannot be built for the target {target!r}"
                raise DefinitionError(message, where, f"use targets={list(self.targets)}, or leave it out")
        if kernel.options.flags and self.compiles_device_code:
            message = "flags are those of nvcc, which does not compile this kernel"
            raise DefinitionError(message, where, "leave flags out")
        self._check_sources(kernel, where)
        self._check_classes(kernel, where)
        self.require_pass_configs(kernel.options.pass_configs, where)

    def _check_sources(self, kernel: Kernel, where: Where) -> None:
        for name in ("sources", "includes"):
            if getattr(kernel.options, name) and not (self.includes_sources or self.has_host_code):
                message = f"{name} are files in CUDA C++, and this definition is written in {self.name}"
                remedy = f'leave {name} out, or use frontend="cuda", or "torch" for operators of PyTorch'
                raise DefinitionError(message, where, remedy)
        if kernel.options.libraries and not kernel.options.sources:
            message = "libraries are called by sources with host code of their own, and there are none"
            raise DefinitionError(message, where, "name the sources, or leave libraries out")
        if kernel.options.sources and kernel.options.per_arch:
            message = "sources are compiled for all archs together, and per_arch asks for a definition of each"
            raise DefinitionError(message, where, "leave per_arch out; a source can ask for __CUDA_ARCH__")

    def _check_classes(self, kernel: Kernel, where: Where) -> None:
        """Raise a DefinitionError for variants that would all have the same code."""
        if ALL in kernel.divisible and not self.specializes:
            message = f"a definition in {self.name} cannot have specialize"
            raise DefinitionError(message, where, "leave it out; declare multiples with divisible={...}")
        if kernel.divisible and not self.uses_multiples:
            message = f"a definition in {self.name} cannot have divisible: its compiler does not use multiples of sizes"
            raise DefinitionError(message, where, "declare the alignment of sizes where the definition declares them")

    def own_tuner(self, kernel: KernelRecord) -> OwnTuner | None:
        """What chooses the configs of a kernel in place of ``kernelwright tune``, if anything does."""
        return None

    def with_host_code(self, includes: Sequence[str]) -> FrontEnd:
        """The front end for definitions whose sources have host code of their own; by default there is none.

        Arguments:
            includes: folders of headers, as in ``@kernel(includes=[...])``.
        """
        return self

    def require_pass_configs(self, pass_configs: PassConfigs, where: Where) -> None:
        """Raise a DefinitionError if the lowering has no such configs of TVM's passes; by default it has none.

        Arguments:
            pass_configs: the result of ``define.pass_configs.checked_pass_configs``.
        """
        if pass_configs:
            message = f"pass_configs are those of TVM's passes, which do not lower a definition in {self.name}"
            raise DefinitionError(message, where, "leave pass_configs out")

    def load(self) -> Any:
        """Import what lowering imports, once, in the process that workers are forks of; by default its module."""
        return importlib.import_module(f".{self.lowering}", type(self).__module__.rpartition(".")[0])

    def recognizes(self, returned: Any) -> bool:
        """Whether a definition in this front end can return this object."""
        return isinstance(returned, self.returns)

    def target(self, unit: Unit) -> Any:
        """What a definition gets as its parameter ``target``: the name of the target, or with ``per_arch`` the arch.

        Raises:
            LoweringError: there is no such arch.
        """
        return unit.arch if unit.per_arch else unit.target

    def calls_definition(self, returned: Any) -> bool:
        """Whether lowering and interpreting call functions of the definition in this process.

        If so, the errors that they raise and the files that they read belong to the definition.
        """
        return False

    def argument_names(self, returned: Any, unit: Unit) -> list[str]:
        """The names of the kernel's arguments.

        Arguments:
            returned: what the definition returned, which :meth:`recognizes` accepts.

        Raises:
            DefinitionError: the definition is wrong.
        """
        return list(returned.declared)

    def constants(self, returned: Any) -> Mapping[str, Any]:
        """What the code is compiled for, by name: values that the definition gives besides the kernel's arguments.

        Arguments:
            returned: what the definition returned, which :meth:`recognizes` accepts.
        """
        return getattr(returned, "arguments", {})

    def interpreted(self, returned: Any, unit: Unit) -> Callable[..., Mapping[str, str]]:
        """A function that runs what the definition returned in the interpreter.

        It takes all arguments of a call: numbers, NumPy arrays, and tensors of tvm-ffi with dtypes that NumPy lacks,
        which are on the CPU. It returns the files that another process used for it, in the form of
        ``LoweredKernel.read``.

        Raises:
            DefinitionError: the definition is wrong.
        """
        raise NotImplementedError

    def lower(self, returned: Any, unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
        """Make the files of a unit, those of :meth:`files`.

        Arguments:
            returned: what the definition returned, which :meth:`recognizes` accepts.
            unit: what is lowered.
            progress: a function that gets the name of each next step. An error shows that name if the worker dies.

        Raises:
            DefinitionError: the definition is wrong.
            LoweringError: it cannot be lowered.
            ToolchainError: something is not installed.
        """
        lowered: LoweredKernel = self.load().lower(returned, unit, progress)
        return lowered
