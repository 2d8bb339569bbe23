"""Front ends, the languages of definitions. Each has a folder, with a subclass of ``FrontEnd`` in ``front_end.py``.

Other distributions may bring more of them (``core/plugins.py``).

That module is imported when it is asked for, and TVM not before something is lowered, which workers do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..core import plugins
from ..core.errors import DefinitionError, KernelwrightError, ToolchainError, Where, one_of, shown
from .sequence import Launches

if TYPE_CHECKING:
    from ..define.kernel import Kernel
    from ..define.kernel_options import KernelOptions
    from .base import FrontEnd
    from .unit import LoweredKernel, Unit

FOLDERS = ("tir", "cuda", "cutedsl", "triton", "tilelang", "torch")
"""The folders here, which have the names of the front ends; the default comes first."""

OWN = {name: f"{__name__}.{name}.front_end:FRONT_END" for name in FOLDERS}
"""Name -> where it is; as the entry points of plug-ins say it."""


def names() -> tuple[str, ...]:
    """The names of the front ends that come with Kernelwright, the default first."""
    return FOLDERS


def get(name: str, where: Where | None = None) -> FrontEnd:
    """The front end of that name.

    Raises:
        DefinitionError: there is none; the message lists the names.
        ToolchainError: it is a plug-in that cannot be used.
    """
    from .base import FrontEnd

    is_name = isinstance(name, str)
    try:
        plugin: FrontEnd | None = plugins.find(name, FrontEnd, OWN.get(name, "")) if is_name else None
    except ToolchainError as error:
        error.where = where or error.where
        raise
    if plugin is None:
        remedy = one_of(str(name), "use one of", [*names(), *plugins.installed(plugins.FRONT_ENDS)])
        raise DefinitionError(f"frontend is {shown(name)}", where, f"{remedy}, or install what has another")
    return plugin


class Written(Protocol):
    """A kernel, or the record of one: what tells its front end."""

    @property
    def options(self) -> KernelOptions:
        """The options that its decorator got."""


def of(kernel: Written, where: Where | None = None) -> FrontEnd:
    """The front end of a kernel. Sources with their own host code have one that stands in for the one of that name.

    Raises:
        DefinitionError: there is none.
    """
    front_end = get(kernel.options.frontend, where)
    return front_end.with_host_code(kernel.options.includes) if kernel.options.sources else front_end


def targets_of(kernel: Kernel) -> Sequence[str]:
    """The targets that a kernel can be built for; a backward kernel follows the kernel whose gradients it computes."""
    allowed = kernel.options.targets
    return get((kernel.forward or kernel).options.frontend).targets if allowed is None else allowed


def recognized(front_end: FrontEnd, returned: Any, where: Where) -> Any:
    """What a definition returned, which its front end can lower; a list of several launches becomes one object.

    Raises:
        DefinitionError: it cannot.
    """
    if front_end.recognizes(returned):
        return returned
    if front_end.has_sequences and isinstance(returned, (list, tuple)) and returned:
        wrong = [item for item in returned if not front_end.recognizes(item)]
        if not wrong:
            return returned[0] if len(returned) == 1 else Launches(returned)
        returned = wrong[0]
    remedy = front_end.remedy
    if returned is None:
        remedy = f"end the definition with a return statement: {remedy}"
    for name in names():
        # A Source is of the front end "cuda" whether or not the decorator has the sources of an Exported.
        if name != front_end.name and get(name).recognizes(returned):
            remedy = f'declare it with @kernel(frontend="{name}", ...)'
    kind = (
        "None" if returned is None else f"an object of type {type(returned).__module__}.{type(returned).__qualname__}"
    )
    raise DefinitionError(f"the definition returned {kind}, expected {front_end.expects}", where, remedy)


def lowered(front_end: FrontEnd, returned: Any, unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
    """What a front end makes of what a definition returned, with what the definition requires of sizes.

    The arguments, and what is raised, are as of :meth:`FrontEnd.lower`.
    """
    from .requirements import with_requirements

    constants = front_end.constants
    known = returned.constants_by(constants) if isinstance(returned, Launches) else constants(returned)
    try:
        made = front_end.lower(returned, unit, progress)
    except KernelwrightError:
        raise
    except Exception as error:
        if not front_end.distribution or front_end.calls_definition(returned):
            raise  # a defect of ours, or an error in the author's code
        raise plugins.raised(front_end, error, unit.where) from error
    _require_files(front_end, made, unit)
    return with_requirements(made, unit, known)


def _require_files(front_end: FrontEnd, made: Any, unit: Unit) -> None:
    """Raise a ToolchainError unless a front end has made the files that it promises."""
    from .unit import LoweredKernel

    archs = unit.archs if front_end.compiles_device_code else (unit.arch,)
    promised = front_end.files(unit.target, archs).names
    if not isinstance(made, LoweredKernel):
        raise plugins.fault(front_end, f"made {shown(made)}, and promises {', '.join(promised)}", unit.where)
    plugins.require_files(front_end, made.files, promised, bytes, unit.where)


def interpreter_variables() -> dict[str, str]:
    """The variables of the environment with which definitions can be interpreted."""
    interpreters = [get(name).interpreter for name in names()]
    return {name: value for one in interpreters if one is not None for name, value in one.variables.items()}


__all__ = ["get", "interpreter_variables", "lowered", "names", "of", "recognized", "targets_of"]
