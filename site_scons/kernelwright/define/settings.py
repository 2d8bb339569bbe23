"""``[tool.kernelwright]``, a build file's keywords and the command line's variables become one frozen Settings."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..core.arch import FAMILIES, FAMILY_OF, TARGETS, native_family, target_of
from ..core.errors import SettingsError, Where, one_of, shown
from ..core.request import ASIDE
from ..core.surroundings import NAME_OF_VARIABLE, OF_WORKERS, PASSED_ON, may_be_declared
from .debug import LEVELS, NO
from .package_name import check_package_name
from .remote_address import SIGNING_KEY, TOKEN, check_address
from .setting_kinds import (
    FLAGS,
    LIMIT,
    NAMES,
    SECONDS,
    SIZE,
    TEXT,
    WORDS,
    Kind,
    Setting,
    backend_names,
    choice,
    require_known,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GLIBC = re.compile(r"2\.[0-9]{1,3}")
TOOLKIT = re.compile(r"(?:(nvcc|nvrtc)-)?([1-9][0-9]\.[0-9])")

CUDA_ARCHS = ("sm_80", "sm_90a", "compute_80")
"""Those that are built for where nothing names one."""


def _setting(kind: Kind, default: Any, text: str, **more: Any) -> Any:
    """A field that declares a setting; ``text`` is its help, and ``more`` are further arguments of :class:`Setting`."""
    declared = Setting(kind, text, **more)
    return field(default=default, metadata={"setting": declared, **({} if declared.affects_output else ASIDE)})


def _aside(kind: Kind, default: Any, text: str, **more: Any) -> Any:
    """A setting that no output depends on."""
    return _setting(kind, default, text, affects_output=False, **more)


def _of_run(kind: Kind, default: Any, text: str, **more: Any) -> Any:
    """A setting that no output depends on, and that all packages of a run have in common."""
    return _aside(kind, default, text, of_run=True, **more)


def _check_targets(targets: tuple[str, ...], where: Where) -> None:
    require_known("target", targets, TARGETS, where)


def _check_archs(archs: tuple[str, ...], where: Where) -> None:
    for arch in archs:
        target_of(arch, where)


def _check_by_family(setting: str, what: str, example: str) -> Callable[[tuple[str, ...], Where], None]:
    """What checks a setting that names something for families of CPUs."""

    def check(items: tuple[str, ...], where: Where) -> None:
        for item in items:
            family, equals, program = item.partition("=")
            if family not in FAMILIES or not equals or not program:
                message = f"{setting} has {shown(item)}, expected <family>=<{what}>"
                remedy = f"write for example {example}; the families are {', '.join(FAMILIES)}"
                raise SettingsError(message, where, remedy)
        families = [item.partition("=")[0] for item in items]
        for family in families:
            if families.count(family) > 1:
                message = f"{setting} names {families.count(family)} {what}s for {family}"
                raise SettingsError(message, where, "name one for each family of CPUs")

    return check


def _check_plugin_pythons(items: tuple[str, ...], where: Where) -> None:
    names = [item.partition("=")[0] for item in items if all(item.partition("="))]
    if len({*names}) != len(items):
        message = f"plugin_pythons is {shown(list(items))}, expected <front end>=<interpreter>, once for each front end"
        raise SettingsError(message, where, "write for example acme=acme/bin/python")


def _check_cuda(toolkits: tuple[str, ...], where: Where) -> None:
    releases: dict[str, str] = {}
    for toolkit in toolkits:
        match = TOOLKIT.fullmatch(toolkit)
        if match is None:
            raise SettingsError(f"cuda has {shown(toolkit)}", where, "write releases such as 13.0, or nvrtc-12.8")
        if other := releases.get(match[2]):
            message = f"cuda has two toolkits of CUDA {match[2]}: {other} and {toolkit}"
            raise SettingsError(message, where, "name one of them: their packages and wheels would have one name")
        releases[match[2]] = toolkit


def _check_glibc(version: str, where: Where) -> None:
    if version and not GLIBC.fullmatch(version):
        raise SettingsError(f"glibc is {version!r}, expected a version such as '2.28', or ''", where)


def _check_tuning(folder: str, where: Where) -> None:
    if folder.startswith("/") or "\\" in folder or {"..", "."} & set(folder.split("/")) or folder.endswith("/"):
        remedy = 'write for example tuning = "tuning"; empty: there are no tables'
        raise SettingsError(f"tuning is {folder!r}, expected a folder below that of the SConstruct", where, remedy)


def _check_environment(names: tuple[str, ...], where: Where) -> None:
    for name in names:
        if not may_be_declared(name) and name not in PASSED_ON:
            message = f"environment contains {shown(name)}, which definitions cannot have"
            remedy = "use letters, digits and underscores"
            if NAME_OF_VARIABLE.fullmatch(name):
                remedy = f"variables that begin with {' or '.join(OF_WORKERS)} decide how workers run: use another name"
            if name == "PYTHONPATH":
                remedy = "add folders of modules to sys.path in the definition, or name them in a .pth file"
            raise SettingsError(message, where, remedy)


def _check_cluster(address: str, where: Where) -> None:
    if address:
        from .cluster_address import check_address

        check_address(address, where)


@dataclass(frozen=True)
class Settings:
    """Everything that a user can choose about a kernel package.

    Each field declares one setting: type, default, kind, and what it is. What may be given for it, the command line,
    ``scons -h``, :func:`affecting` and the table in ``docs/reference-settings.md`` follow from that.
    """

    package: str = _setting(
        TEXT,
        "",
        "import name of the package, where KernelPackage gives none",
        check=check_package_name,
        on_command_line=False,
    )
    targets: tuple[str, ...] = _setting(
        WORDS, TARGETS, f"targets to build for, from: {', '.join(TARGETS)}", check=_check_targets
    )
    archs: tuple[str, ...] = _setting(
        WORDS,
        (FAMILIES[native_family()].usual, *CUDA_ARCHS),
        "architectures: x86-64-v3, neoverse-n1, sm_90a, compute_80 (PTX), ...; replaces those of the targets it names",
        check=_check_archs,
    )
    # merge() checks the names of backends: only modules above this one know them.
    backends: tuple[str, ...] = _setting(WORDS, ("tvm_ffi",), "execution backends, the first is the default")
    configs: str = _setting(
        TEXT, "", "file of recorded configs: the kernels that it names have exactly these variants; empty: none"
    )
    tuning: str = _setting(
        TEXT,
        "tuning",
        "folder of the tuning tables, which choose among the candidates of kernels with a space; empty: none",
        check=_check_tuning,
    )
    cuda_compiler: str = _setting(choice("nvcc", "nvrtc"), "nvcc", "what compiles device code")
    cuda: tuple[str, ...] = _setting(
        NAMES,
        (),
        "CUDA toolkits, a package and a wheel for each: releases such as 13.0, or nvrtc-12.8 for the NVRTC of one; "
        "empty: one toolkit, whichever is found",
        check=_check_cuda,
    )
    cuda_wheels: str = _setting(
        choice("each", "one"),
        "each",
        "with several toolkits; each: a wheel for each; one: one with code for each arch of the first that knows it",
    )
    cuda_label: str = _setting(
        choice("yes", "no"),
        "yes",
        "whether versions of wheels end with the toolkits that cuda names, as 1.0+cu128; no: for an index such as PyPI",
    )
    nvcc: str = _setting(
        TEXT, "", "nvcc, a path or a name; empty: that of the PyPI packages, else CUDA_HOME's, else the one on PATH"
    )
    debug: str = _setting(
        choice(*LEVELS),
        NO,
        "what is built for debuggers and profilers, in build/debug-...; lineinfo: lines of sources in code for GPUs, "
        "and symbols for the CPU; full: also variables, in code for GPUs that is not optimised",
    )
    nvcc_flags: tuple[str, ...] = _setting(FLAGS, (), "further flags of each run of the CUDA compiler")
    host_compiler: str = _setting(
        TEXT, "", "C compiler, a path or a name; empty: the first of cc, gcc and clang on PATH"
    )
    cross_compilers: tuple[str, ...] = _setting(
        NAMES,
        (),
        "C compilers for CPUs of another family than this machine's, such as aarch64=aarch64-linux-gnu-gcc, or "
        "aarch64=zig; one that is not named: GNU's for that family, else Zig",
        check=_check_by_family("cross_compilers", "compiler", "aarch64=aarch64-linux-gnu-gcc"),
    )
    cross_pythons: tuple[str, ...] = _aside(
        NAMES,
        (),
        "Python interpreters on CPUs of another family, such as aarch64=arm/python, a script that has qemu run one: "
        "there scons check runs what this machine cannot; a family that is not named is not checked",
        check=_check_by_family("cross_pythons", "interpreter", "aarch64=arm/python"),
    )
    cross_cuda: str = _setting(
        TEXT,
        "",
        "folder of a CUDA toolkit for CPUs of another family, whose runtime sources with host code of their own are "
        "linked with; empty: that beside nvcc, if it has one",
    )
    tilelang_python: str = _aside(
        TEXT, "", "Python interpreter of an environment with TileLang, a path or a name; empty: there is none"
    )
    triton_python: str = _aside(
        TEXT, "", "Python interpreter of an environment with Triton, a path or a name; empty: Triton is beside TVM"
    )
    plugin_pythons: tuple[str, ...] = _aside(
        NAMES,
        (),
        "Python interpreters of environments with the compilers of plug-ins, such as acme=acme/bin/python; a "
        "compiler that is not named is beside TVM",
        check=_check_plugin_pythons,
    )
    glibc: str = _setting(
        TEXT, "2.28", "oldest glibc that libraries run with; empty: that of the machine that builds", check=_check_glibc
    )
    environment: tuple[str, ...] = _setting(
        NAMES, (), f"variables that definitions see besides {', '.join(PASSED_ON)}", check=_check_environment
    )
    worker_timeout: float = _aside(SECONDS, 300.0, "time that starting a worker, or one request to it, may take")
    tool_timeout: float = _aside(SECONDS, 1800.0, "time that one run of a compiler may take")
    memory_limit: str = _of_run(SIZE, "", "memory for all runs of compilers together; empty: 80 % of what is free")
    nvcc_memory: str = _of_run(SIZE, "", "memory for one run of nvcc or NVRTC; empty: learnt from earlier builds")
    pch_size: str = _aside(SIZE, "2G", "what NVRTC's precompiled headers are kept within; empty: there are none")
    dump_ir: str = _aside(
        choice("no", "yes"), "no", "whether each build also writes the IR after each of TVM's passes, as scons ir does"
    )
    cache_dir: str = _of_run(TEXT, "build/.kernelwright/cache", "folder of the build cache; empty: no cache")
    cache_size: str = _of_run(SIZE, "2G", "what the build cache is cut down to at the end of a build")
    remote_cache: str = _of_run(
        TEXT,
        "",
        "cache that machines share, behind the build cache: https://..., s3://..., gs://..., az://..., a folder; "
        "empty: none",
        check=check_address,
    )
    remote_mode: str = _of_run(choice("read", "read-write"), "read", "whether builds also write to the remote cache")
    remote_layout: str = _of_run(choice("plain", "bazel"), "plain", "how objects lie in the remote cache")
    remote_key: str = _of_run(
        TEXT, "", "public key that objects of the remote cache must be signed with; empty: signatures do not count"
    )
    remote_ca: str = _of_run(
        TEXT, "", "file with a certificate authority of the remote cache's server, in PEM; empty: those of the system"
    )
    cluster: str = _of_run(
        TEXT,
        "",
        "address of a Dask scheduler whose workers compile, such as tls://host:8786; empty: all is done here",
        check=_check_cluster,
    )
    cluster_certificates: str = _of_run(
        TEXT,
        "~/.config/kernelwright/cluster",
        "folder with ca.pem, cert.pem and key.pem, for a cluster that tls:// leads to",
    )
    # The words are the modes of fatbinary.
    compress: str = _setting(choice("none", "speed", "balance", "size"), "none", "how cubins and PTX are compressed")
    split: str = _setting(
        choice("none", "arch", "variant"),
        "none",
        "where device code goes; none: one wheel with the rest; arch: a wheel of its own for each CUDA arch; variant: "
        "also a wheel with the rest for each kind of GPU, of which the installer takes one",
    )
    max_wheel_size: str = _aside(SIZE, "", "largest size that a wheel may have; empty: no limit")
    max_registers: int | None = _setting(
        LIMIT, None, "registers per thread that a device function may use; empty: no limit"
    )
    max_spills: int | None = _setting(LIMIT, None, "bytes that a device function may spill; empty: no limit")
    places: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False, metadata=ASIDE)
    """No setting: where each that was given comes from, and each arch, for messages."""

    def where(self, *names: str) -> Where:
        """The place for messages about some settings, or about archs, which layers can have one beside the other."""
        given = dict.fromkeys(self.places[name] for name in names if name in self.places)
        return Where(stage="settings", location=", ".join(given) or None)

    def python_of(self, plugin: str) -> str:
        """The interpreter of the environment that a plug-in has for its compiler; empty: the compiler is beside TVM."""
        return dict(item.split("=", 1) for item in self.plugin_pythons).get(plugin, "")

    @property
    def cross_python(self) -> str:
        """What ``cross_pythons`` names for the package's family, if that is not this machine's; empty: nothing."""
        named = dict(item.split("=", 1) for item in self.cross_pythons)
        return named.get(self.family, "") if self.family != native_family() else ""

    def archs_of(self, target: str) -> tuple[str, ...]:
        """The archs of one target, in the order given."""
        return tuple(arch for arch in self.archs if target_of(arch) == target)

    @property
    def families(self) -> tuple[str, ...]:
        """The families of CPUs that the package is built for, this machine's first: those of its CPU archs."""
        native = native_family()
        listed = dict.fromkeys(FAMILY_OF[arch] for arch in self.archs if arch in FAMILY_OF)
        return tuple(sorted(listed, key=lambda family: family != native)) or (native,)

    @property
    def family(self) -> str:
        """The first of these: the only one, once a run has parted the settings by families."""
        return self.families[0]

    def for_family(self, family: str) -> Settings:
        """The same settings without the CPU archs of other families."""
        return replace(self, archs=tuple(arch for arch in self.archs if FAMILY_OF.get(arch, family) == family))

    @property
    def toolkits(self) -> tuple[Settings, ...]:
        """The settings of the packages that are built, one for each CUDA toolkit, the main one first.

        They have all archs, of which a toolkit may not know each.
        """
        return self.of_each_toolkit if self.cuda_wheels == "each" else (self,)

    @property
    def of_each_toolkit(self) -> tuple[Settings, ...]:
        """The same settings with each CUDA toolkit, in the order in which they are named; itself, if none is."""
        chosen = [replace(self, cuda=(one[2],), cuda_compiler=one[1] or self.cuda_compiler) for one in self._named]
        return tuple(chosen) or (self,)

    @property
    def _named(self) -> list[re.Match[str]]:
        """The CUDA toolkits: compiler, if it is said, and release."""
        return [match for match in map(TOOLKIT.fullmatch, self.cuda) if match and "cuda" in self.targets]

    @property
    def toolkit(self) -> str:
        """The release of the CUDA toolkit, the first one if there are several; empty: any."""
        return next((one[2] for one in self._named), "")

    @property
    def label(self) -> str:
        """What tells wheels of the toolkits from those of others: ``cu128``; empty: no toolkit is named."""
        return "".join(f"cu{one[2].replace('.', '')}" for one in self._named)

    def labelled(self, subject: str) -> str:
        """What a line about something calls it, with the label of the toolkit if one is named."""
        return f"{subject} {self.label}".rstrip()

    @property
    def providers(self) -> tuple[str, ...]:
        """The archs whose device code is in wheels of their own."""
        return self.archs_of("cuda") if self.split == "arch" else ()


SETTINGS: Mapping[str, Setting] = {
    declared.name: declared.metadata["setting"] for declared in fields(Settings) if "setting" in declared.metadata
}
"""Name of a setting -> what is declared about it."""

ENVIRONMENT = {f"KERNELWRIGHT_{name.upper()}": name for name in SETTINGS if name.startswith("remote_")}
"""Variable of the environment -> name of the setting: what differs from machine to machine of one project."""

COMMAND_LINE = {name.upper(): name for name, declared in SETTINGS.items() if declared.on_command_line}
"""Name on SCons's command line -> name of the setting."""

WHEEL_TABLES = ("project", "sdist", "version")
"""Tables of ``[tool.kernelwright]`` that are no settings: what wheels and source distributions are made of."""


def affecting(settings: Settings) -> dict[str, Any]:
    """The settings that decide what is built: name -> value."""
    return {name: getattr(settings, name) for name, declared in SETTINGS.items() if declared.affects_output}


def environment_layer(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings that variables of the environment give: name -> raw value, a layer of :func:`merge`."""
    return {name: environment[variable] for variable, name in ENVIRONMENT.items() if variable in environment}


def unknown_variables(environment: Iterable[str]) -> list[str]:
    """The variables whose names begin like those of a remote cache, and that mean nothing."""
    known = {*ENVIRONMENT, TOKEN, SIGNING_KEY}
    return [name for name in environment if name.startswith("KERNELWRIGHT_REMOTE_") and name not in known]


def read_pyproject(path: Path) -> dict[str, Any]:
    """The settings in the table ``[tool.kernelwright]`` of a pyproject.toml; empty when there is no such file or table.

    Raises:
        SettingsError: the file is not TOML, or the table has an unknown key.
    """
    where = Where(stage="settings", location=path.name)
    tools = read_document(path).get("tool", {})
    table = tools.get("kernelwright", {}) if isinstance(tools, dict) else None
    if not isinstance(table, dict):
        raise SettingsError("[tool.kernelwright] is not a table", where)
    for name in WHEEL_TABLES:
        if not isinstance(table.get(name, {}), dict):
            raise SettingsError(f"[tool.kernelwright.{name}] is not a table", where)
    settings = {name: value for name, value in table.items() if name not in WHEEL_TABLES}
    reject_unknown(settings, where, "[tool.kernelwright]")
    return settings


def read_document(path: Path) -> dict[str, Any]:
    """The content of a pyproject.toml; empty when there is no such file.

    Raises:
        SettingsError: the file cannot be read, or is not TOML.
    """
    where = Where(stage="settings", location=path.name)
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot be read: {error}", where) from error
    except RecursionError as error:
        raise SettingsError("is nested too deeply", where, "mend the file") from error
    except ValueError as error:  # not only TOMLDecodeError: an integer may have too many digits
        raise SettingsError(f"is not valid TOML: {error}", where, "mend the file") from error
    return document


def reject_unknown(names: Iterable[str], where: Where, place: str) -> None:
    """Raise a SettingsError for a name that is no setting, with the nearest one that is."""
    for name in names:
        if name not in SETTINGS:
            remedy = one_of(name, "the settings are", SETTINGS)
            raise SettingsError(f"{place} has no setting {name!r}", where, remedy)


def merge(layers: Iterable[tuple[str, Mapping[str, Any]]], known_backends: tuple[str, ...]) -> Settings:
    """Settings from layers of raw values, later ones winning.

    ``archs`` of a layer replaces only the archs of the targets that it names, so that ``ARCHS=sm_90a`` chooses the GPU
    code and leaves the CPU's alone: what an earlier layer says, or the default.

    Arguments:
        layers: pairs of the place, for messages, and setting -> value. Lists may be strings with commas or blanks.
        known_backends: names that ``backends`` may hold.

    Raises:
        SettingsError: a value is of the wrong kind or unknown.
    """
    values: dict[str, Any] = {"archs": Settings().archs}
    places: dict[str, str] = {}
    for place, layer in layers:
        where = Where(stage="settings", location=place)
        reject_unknown(layer, where, place)
        for name, raw in layer.items():
            value = SETTINGS[name].read(name, raw, where)
            if name == "archs":
                named = {target_of(arch) for arch in value}
                places |= dict.fromkeys(value, place)
                value = (*(a for a in values["archs"] if target_of(a) not in named), *value)
            if name == "backends":
                value = backend_names(value)
                require_known("backend", value, known_backends, where)
            values[name], places[name] = value, place
    settings = Settings(**values, places=places)
    if settings.cuda_label == "no" and len(settings.toolkits) > 1:
        message = f"cuda_label = 'no' would give the wheels of {' and '.join(settings.cuda)} one name"
        remedy = 'write cuda_label = "yes", or cuda_wheels = "one", or name one toolkit'
        raise SettingsError(message, settings.where("cuda", "cuda_label"), remedy)
    if settings.split != "none" and "cuda" not in settings.targets:
        remedy = "add the target cuda, or write split = none; on the command line: SPLIT=none"
        where = settings.where("split", "targets")
        raise SettingsError(f"split = {settings.split!r} without the target cuda", where, remedy)
    return settings
