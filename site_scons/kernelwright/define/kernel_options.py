"""The options of ``@kernel``. Each is declared once: its type, its default, how it is checked, and what it means.

The decorator, the record that the build keeps of a kernel, the backward kernel's decorator, the messages and the table
in ``docs/reference-definitions.md`` follow from that. A new option is one field here, and the code that uses it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, NamedTuple, TypeVar

from ..core.converter import that
from ..core.dependencies import IN_PACKAGE
from ..core.errors import DefinitionError, Where, is_text, one_of, shown
from ..core.request import ASIDE
from ..runtime.size import Requirement
from .debug import LEVELS
from .pass_configs import PassConfigs, checked_pass_configs
from .recorded import Recorded
from .setting_kinds import backend_names

Tolerance = Annotated[float, that("a number >= 0", lambda value: value >= 0)]
Some = TypeVar("Some", bound="OwnOptions")

MAX_BITS = 64
"""Largest integer in a config, in bits: it gets into names, JSON and messages."""


REQUIRE = (
    'write for example requires=["n <= block"]: < <= > >= == or != between two sizes with + - * // % min max and '
    "ceildiv; two entries for two comparisons"
)


BESIDE = "give paths relative to the folder of the definition file"


SHELL = frozenset('$`"\\')
"""What a shell acts on between double quotes."""


def check_includes(includes: Sequence[str], where: Where) -> None:
    """Raise a DefinitionError for a name that is not one of a folder of headers."""
    for folder in includes:
        is_above = {*folder.split("/")} == {".."}
        if {*folder} & SHELL:
            message = f'includes contains {folder!r}, and nvcc has a shell read it, which acts on $, `, " and \\ in it'
            raise DefinitionError(message, where, "move it to a folder without such characters")
        if not is_above and not is_relative(folder.removeprefix(IN_PACKAGE if folder.startswith(IN_PACKAGE) else "/")):
            message = f"includes contains {folder!r}, which is no path of a folder"
            remedy = f'{BESIDE}, absolute ones, or in an installed package: "{IN_PACKAGE}cutlass/include"'
            raise DefinitionError(message, where, remedy)


LIBRARY = re.compile(r"[A-Za-z0-9][\w+.-]*")
"""The name of a library of CUDA's packages, as linkers have it: without ``lib`` in front, and without an ending."""


def check_libraries(libraries: Sequence[str], where: Where) -> None:
    """Raise a DefinitionError for a name that is not one of a library."""
    for name in libraries:
        inside = name.removeprefix(IN_PACKAGE)
        if not (LIBRARY.fullmatch(name) if inside == name else is_relative(inside) and "/" in inside):
            message = f"libraries contains {name!r}, which is no name of a library"
            remedy = (
                f'write "cublasLt" for one of CUDA\'s, or a path in an installed package: "{IN_PACKAGE}acme/libacme.so"'
            )
            raise DefinitionError(message, where, remedy)


def is_relative(path: str) -> bool:
    """Whether a path is a relative one that commands can have: those of nvcc are read by a shell."""
    return bool(path.strip("/. ")) and path[0] not in "/-" and not set(path) & {"\0", "\n", *SHELL}


class Option(NamedTuple):
    """The declaration of an option, besides its type and its default.

    Arguments:
        word: what the docs call its type, in Markdown.
        help: what it means, in Markdown.
        checked: makes the value of what was given; called with the option's name, what was given and the place of the
            definition. It raises a DefinitionError.
        default: what holds if it is not given, in Markdown; empty: the default of the field.
    """

    word: str
    help: str
    checked: Callable[[str, Any, Where], Any]
    default: str = "none"


def _option(
    default: Any,
    word: str,
    text: str,
    checked: Callable[[str, Any, Where], Any],
    shown_default: str = "none",
    aside: bool = False,
) -> Any:
    """A field that declares an option.

    Arguments:
        default: of the field.
        word, text, checked, shown_default: the fields of an :class:`Option`, in its order.
        aside: whether nothing that is built depends on it.
    """
    metadata = {"option": Option(word, text, checked, shown_default), **(ASIDE if aside else {})}
    given: dict[str, Any] = {"default_factory": dict} if default == {} else {"default": default}
    return field(metadata=metadata, **given)


def declared_options(kind: type[OwnOptions]) -> dict[str, Option]:
    """Name -> declaration, for all options of one of the classes here."""
    return {each.name: each.metadata["option"] for each in fields(kind)}


def read_options(kind: type[Some], given: Mapping[str, Any], decorator: str, where: Where) -> Some:
    """The options that a decorator got, checked.

    Arguments:
        kind: which options it takes.
        decorator: what it is called in messages, such as ``@kernel``.
        where: the definition.

    Raises:
        DefinitionError: there is no such option, or a value is wrong.
    """
    known = declared_options(kind)
    for name in given:
        if name not in known:
            remedy = one_of(name, f"the arguments of {decorator} are", known)
            raise DefinitionError(f"{decorator} has no argument {name!r}", where, remedy)
    return kind(**{name: known[name].checked(name, value, where) for name, value in given.items()})


# ---- how they are checked ----


def _as_given(name: str, value: Any, where: Where) -> Any:
    """For what can only be checked together with the function and with other options."""
    return value


def _names(name: str, value: Any, where: Where) -> tuple[str, ...] | None:
    if value is None:
        return None
    texts = _texts(name, value, where)
    if len(set(texts)) != len(texts):
        raise DefinitionError(f"{name} lists an entry twice: {shown(texts)}", where)
    return texts


def _backends(name: str, value: Any, where: Where) -> tuple[str, ...] | None:
    names = _names(name, value, where)
    return None if names is None else backend_names(names)


def _texts(name: str, value: Any, where: Where) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise DefinitionError(f"{name} is {shown(value)}, expected a list of strings", where, f"write {name}=[...]")
    result = tuple(value)
    bad = [item for item in result if not isinstance(item, str) or not is_text(item)]
    if bad:
        raise DefinitionError(f"{name} contains {shown(bad[0])}, expected strings", where)
    return result


def _outputs(name: str, value: Any, where: Where) -> tuple[str | int, ...]:
    """Outputs as far as they can be checked before the arguments are known."""
    if value is None:
        return ()
    remedy = 'write outputs=["y"], or outputs=[-1] for the last argument'
    if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
        message = f"outputs is {shown(value)}, expected a list of names or positions of arguments"
        raise DefinitionError(message, where, remedy)
    result = tuple(value)
    for entry in result:
        if not (type(entry) is int and entry.bit_length() <= MAX_BITS) and not (
            isinstance(entry, str) and is_text(entry)
        ):
            message = f"outputs contains {shown(entry)}, expected the name or the position of an argument"
            raise DefinitionError(message, where, remedy)
    if len(set(result)) != len(result):
        raise DefinitionError(f"outputs lists an entry twice: {shown(result)}", where)
    return result


def _reads(name: str, value: Any, where: Where) -> tuple[str, ...]:
    patterns = _names(name, value, where) or ()
    for pattern in patterns:
        if not pattern.strip("/") or "\\" in pattern:
            raise DefinitionError(
                f"reads contains {pattern!r}, expected a path, absolute or relative to that of the definition file",
                where,
                'write for example reads=["tuning.json", "tables/*.json"]',
            )
    return patterns


def _pass_configs(name: str, value: Any, where: Where) -> PassConfigs:
    return checked_pass_configs(value, where)


def _requires(name: str, value: Any, where: Where) -> tuple[str, ...]:
    """Requirements as far as they can be checked before the names are known."""
    texts = _texts(name, value, where)
    for text in texts:
        try:
            Requirement(text)
        except ValueError as error:
            message = f"requires has {shown(text)}, which is no comparison of two sizes: {error}"
            raise DefinitionError(message, where, REQUIRE) from error
    return texts


def _flag(name: str, value: Any, where: Where) -> bool:
    if not isinstance(value, bool):
        raise DefinitionError(f"{name} is {shown(value)}, expected True or False", where)
    return value


def _debug(name: str, value: Any, where: Where) -> str | None:
    if value is not None and value not in LEVELS:
        raise DefinitionError(f"debug is {shown(value)}, expected one of {', '.join(LEVELS)}", where)
    return None if value is None else str(value)


def _tolerance(name: str, value: Any, where: Where) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= sys.float_info.max:
        raise DefinitionError(f"tolerance is {shown(value)}, expected a number >= 0", where)
    return float(value)


def _named_by(check: Callable[[Sequence[str], Where], None]) -> Callable[[str, Any, Where], tuple[str, ...]]:
    def checked(name: str, value: Any, where: Where) -> tuple[str, ...]:
        names = _names(name, value, where) or ()
        check(names, where)
        return names

    return checked


# ---- the options ----


@dataclass(frozen=True, kw_only=True)
class OwnOptions:
    """The options that a kernel and its backward kernel have each for itself."""

    outputs: Sequence[str | int] = _option(
        (),
        "list",
        'Tensor arguments that callers may leave out, by name (`"y"`) or by position among all arguments (`0`, or '
        "`-1` for the last). New ones are returned in this order, several as a tuple. Their sizes must follow from "
        "sizes of inputs or from integer arguments. It is an error if the function only reads one of them.",
        _outputs,
    )
    per_arch: bool = _option(
        False,
        "bool",
        "Call the definition once for each CUDA arch: **one source for each arch** below.",
        _flag,
        "`False`",
    )
    requires: Sequence[str] = _option(
        (),
        "list",
        '[What sizes have to be](reference-variants.md#requires): `["n <= block", "m == 8 * m8"]`. '
        "A call runs the first variant whose requirements hold.",
        _requires,
    )
    flags: Sequence[str] = _option((), "list", "nvcc flags, after `nvcc_flags` of the package.", _texts)
    debug: str | None = _option(
        None,
        "string",
        'What is built [for debuggers and profilers](bench.md#debug): `"lineinfo"`, `"full"` or `"no"`.',
        _debug,
        "the setting `debug`",
    )
    pass_configs: PassConfigs = _option({}, "dict", "Configs of TVM's passes: **pass configs** below.", _pass_configs)
    reads: Sequence[str] = _option(
        (),
        "list",
        "Data files that the definition, its reference or its inputs read: paths relative to the folder of the "
        "definition file, or absolute ones. `*`, `?` and `[...]` match within a name, `**` matches any number of "
        "folders; names that begin with a dot do not match. These files are dependencies, even if nothing is seen "
        "to read them, and they may be absent. In strict mode, an absent file that the definition tries to open "
        "has to be named in full. A pattern depends on all names in its folder, so give tables a folder of their "
        "own.",
        _reads,
        aside=True,
    )
    tolerance: Tolerance | None = _option(
        None,
        "number",
        "Largest error that the check accepts, see [checks](reference-checks.md#what-is-checked).",
        _tolerance,
        "by dtype",
    )


@dataclass(frozen=True, kw_only=True)
class KernelOptions(OwnOptions):
    """The options of a kernel; its backward kernel takes over those that it cannot have for itself."""

    targets: Sequence[str] | None = _option(None, "list", "Only these targets.", _names, "those of the package")
    archs: Sequence[str] | None = _option(
        None, "list", "Only these archs, for the targets that they belong to.", _names, "those of the package"
    )
    backends: Sequence[str] | None = _option(None, "list", "Only these backends.", _backends, "those of the package")
    frontend: str = _option(
        "tir",
        "string",
        "What the definition is written in: `tir`, `cuda` for [CUDA C++](cuda-cpp.md), `cutedsl` for "
        "[CuTe DSL](cutedsl.md), `triton` for [Triton](triton.md), `tilelang` for [TileLang](tilelang.md), or `torch` "
        "for sources [for PyTorch](cuda-cpp.md#operators-for-pytorch).",
        _as_given,
        "`tir`",
    )
    sources: Sequence[str] = _option(
        (),
        "list, or a function",
        'With `frontend="cuda"` or `"torch"`, sources with '
        "[host code of their own](cuda-cpp.md#sources-with-their-own-host-code): paths relative to the folder of "
        "the definition file, `package:` and a path in an installed package, or a "
        "[`Text`](cuda-cpp.md#sources-that-the-definition-writes). A function is called with keys of a config.",
        _as_given,
    )
    includes: Sequence[str] = _option(
        (),
        "list",
        'With `frontend="cuda"` or `"torch"`, [folders of headers](cuda-cpp.md#folders-of-headers): paths relative to '
        "the folder of the definition file, `package:` and a path in an installed package, or absolute paths.",
        _named_by(check_includes),
    )
    libraries: Sequence[str] = _option(
        (),
        "list",
        "With `sources`, [libraries](cuda-cpp.md#libraries) that these call: names of CUDA's, such as `cublasLt`, or "
        "`package:` and a path in an installed package.",
        _named_by(check_libraries),
    )


@dataclass(frozen=True, kw_only=True)
class BackwardDeclaration(OwnOptions):
    """All options of ``.backward``."""

    tune: Any = _option(
        None,
        "list of dicts, or a function",
        "The [space](reference-variants.md#tune) of tuning parameters: further parameters of the function, "
        "which callers do not see.",
        _as_given,
    )


@dataclass(frozen=True, kw_only=True)
class Declaration(KernelOptions, BackwardDeclaration):
    """All options of ``@kernel``. Those that choose the variants are needed only until the variants are made."""

    configs: Sequence[Mapping[str, Any]] | Recorded | None = _option(
        None,
        "list of dicts, or [`recorded(...)`](#recorded)",
        "Keys are the function's parameters. Values are bool, int, float or str. A call tries the first config "
        "first. A config may leave out a parameter that has a default.",
        _as_given,
        "one empty config",
    )
    preferred: Any = _option(
        None,
        "dict, or a function",
        "Arch → the point of the [space](reference-variants.md#tune) that runs there if no tuning table says more: "
        '`{"sm_90a": {"block_m": 128}}`.',
        _as_given,
    )
    divisible: Mapping[str, Sequence[int]] | None = _option(
        None,
        "dict",
        '[Classes of sizes](reference-variants.md#divisible): `{"m": [1, 16]}` makes a variant for each m that is '
        "a multiple of 16, and one for all others.",
        _as_given,
    )
    specialize: str | None = _option(
        None,
        '`"auto"`',
        "For [Triton](triton.md#specialisation): two variants of each config, one for data and rows that are "
        "multiples of 16, and one for all calls.",
        _as_given,
    )


def kept(declared: OwnOptions, **others: Any) -> KernelOptions:
    """The options of a declaration that a build needs, some of them replaced by others."""
    names = {each.name for each in fields(declared)}
    given = {each.name: getattr(declared, each.name) for each in fields(KernelOptions) if each.name in names}
    return KernelOptions(**given | others)
