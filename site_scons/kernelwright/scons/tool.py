"""The SCons tool: ``generate`` adds ``KernelPackage`` and the command line's variables to an environment."""

from __future__ import annotations

import difflib
import os
import re
import sys
from pathlib import Path, PurePath
from typing import Any, NoReturn

import SCons.Script
import SCons.Util
import SCons.Variables

from .. import backends
from ..core.errors import KernelwrightError, SettingsError, Where, refused, shown
from ..define.debug import folder_of
from ..define.settings import (
    COMMAND_LINE,
    SETTINGS,
    Settings,
    environment_layer,
    merge,
    read_pyproject,
    reject_unknown,
    unknown_variables,
)
from ..package import OWN_FAMILY
from ..stages.tools import editions
from . import command_line, compat
from .graph import PackageGraph, add_wheels
from .package import Package
from .run import BuildRun, begun_run, current_run

DISTRIBUTION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
"""The name of a distribution: https://packaging.python.org/en/latest/specifications/name-normalization/"""

PREFIX = "KERNELWRIGHT_"
"""Construction variables have this prefix, because SCons reserves the plain name TARGETS for itself."""


def generate(env: Any, **keywords: Any) -> None:
    """Set an environment up: construction variables, the help text, and the method ``KernelPackage``."""
    try:
        table = read_pyproject(Path(env.Dir("#").get_abspath()) / "pyproject.toml")
        defaults = merge([("pyproject.toml", table)], backends.choices())
    except KernelwrightError as error:
        stop(error)
    env["KERNELWRIGHT_TABLE"] = table
    command_line.add_options()
    _add_variables(env, defaults)
    env.AddMethod(kernel_package, "KernelPackage")
    env.AddMethod(kernel_wheel, "KernelWheel")


def exists(env: Any) -> bool:
    """Whether SCons can use the tool: always. What is missing is reported when it is needed."""
    return True


def kernel_package(env: Any, package: str | None = None, sources: Any = (), **settings: Any) -> Any:
    """``env.KernelPackage(name, sources, **settings)``: build kernels and assemble them to an importable package.

    Arguments:
        package: import name of the package; left out, it is the one that pyproject.toml names.
        sources: definition files, as nodes or names. Those whose name begins with an underscore are helpers, and left
            out.
        settings: settings of this package that differ from those in pyproject.toml; the command line wins over both.

    Returns:
        The nodes of the package's generated files.
    """
    try:
        _require_utf8(env.Dir("#").get_abspath())
        merged = _settings(env, package, settings)
        run = current_run(env, merged, settings)
        run.lock()
        run.shards.merge()
        files = [node for node in _nodes(env, sources) if not node.name.startswith("_")]
        if not files:
            remedy = 'give it some: Glob("kernels/*.py"); files whose names begin with _ are helpers'
            raise SettingsError(f"{merged.package} has no definition files", Where(stage="settings"), remedy)
        with compat.unchecked_nodes():
            graphs: list[PackageGraph] = []
            for one, place in _editions(run, merged):
                first = None
                for family in _families(one):
                    of_family = Package(env, run, one.for_family(family), files, place, first)
                    first = first or of_family
                    graphs.append(PackageGraph(of_family))
                    graphs[-1].add()
            nodes = SCons.Util.NodeList([n for graph in graphs for n in graph.nodes])
            run.packages[merged.package] = graphs, nodes
            env.Alias(merged.package, nodes)
            return nodes
    except KernelwrightError as error:
        stop(error, begun_run(env))
    except OSError as error:
        stop(refused(error, place=os.path.join(env.Dir("#").get_abspath(), "build")), begun_run(env))  # noqa: PTH118


def _editions(run: BuildRun, settings: Settings) -> list[tuple[Settings, str]]:
    """The packages that are built: settings, and the folder of those besides the main one.

    A package of several CUDA toolkits is built with each of them.
    """
    found = settings.toolkits
    if len(found) > 1 and not any(SCons.Script.GetOption(option) for option in ("help", "clean")):
        known = editions(settings, run.toolchain)
        run.known_archs.update(arch for _, archs in known for arch in archs)
        found = tuple(one for one, _ in known)
    debug = folder_of(settings.debug)
    return [(one, "-".join(filter(None, (debug, one.label if number else "")))) for number, one in enumerate(found)]


def _require_utf8(folder: str) -> None:
    """Refuse a project folder whose name no compiler, record or wheel could hold."""
    try:
        folder.encode()
    except UnicodeEncodeError:
        message = f"the project's folder {shown(folder)} has a name that is not UTF-8"
        raise SettingsError(message, Where(stage="settings"), "rename it") from None


def kernel_wheel(env: Any, package: Any = None, name: str = "") -> Any:
    """``env.KernelWheel(package)``: have ``scons wheel`` put a wheel of a package into ``dist/``.

    Arguments:
        package: import name of a package of ``KernelPackage``, or what that returned; left out, it is the one that
            pyproject.toml names.
        name: of the distribution; left out, it is that of the project. Each further package needs one of its own.

    Returns:
        The alias ``wheel``.
    """
    begun = begun_run(env)
    named = env["KERNELWRIGHT_TABLE"].get("package", "") if package is None else package
    where = Where(stage="settings", location=f"KernelWheel({shown(named)})")
    added = next((pair[1] for pair in (begun.packages if begun else {}).items() if _is_of(pair, named)), None)
    try:
        if added is None:
            raise SettingsError(f"there is no package {shown(named)}", where, "call env.KernelPackage for it before")
        if not isinstance(name, str) or (name and DISTRIBUTION.fullmatch(name) is None):
            remedy = "use letters, digits, dots, dashes and underscores, with a letter or a digit at either end"
            raise SettingsError(f"name is {shown(name)}, which no distribution can have", where, remedy)
        if "wheel" not in command_line.targets() or command_line.is_passive():
            # Nothing is read, or imported, for a wheel that is not wanted.
            return env.Alias("wheel")
        with compat.unchecked_nodes():
            return add_wheels(added[0], name)
    except KernelwrightError as error:
        stop(error, begun)
    except OSError as error:
        stop(refused(error, place=env.Dir("#").get_abspath()), begun)


def _families(settings: Settings) -> tuple[str, ...]:
    """The families of CPUs that a run builds a package for: one, if no file of it is for a CPU."""
    called = backends.resolve(settings.backends, settings.targets)
    is_of_one = OWN_FAMILY in os.environ or not any(backends.get(name).library for name in called)
    return settings.families[:1] if is_of_one else settings.families


def _is_of(pair: tuple[str, tuple[Any, Any]], package: Any) -> bool:
    """Whether an item of ``BuildRun.packages`` is the package that is given by its name or by its nodes."""
    name, (_, nodes) = pair
    return bool(name == package if isinstance(package, str) else package == nodes)


def stop(error: KernelwrightError, run: BuildRun | None = None) -> NoReturn:
    """End the run with a message, as SCons does for its own errors.

    SCons's UserError would add the place where it was raised, which is a line of ours.
    """
    if run is not None:
        run.outcome.stopped()
    sys.stdout.flush()
    sys.stderr.write(f"scons: *** {error}\n")
    SCons.Script.Exit(2)
    raise SystemExit(2)


def _nodes(env: Any, sources: Any) -> list[Any]:
    """The sources' nodes in the source tree, whether or not a variant_dir copies them."""
    try:
        files = [str(one) if isinstance(one, PurePath) else one for one in SCons.Util.flatten([sources])]
        nodes = [node.srcnode() for node in env.arg2nodes(files, env.fs.File)]
    except (TypeError, AttributeError) as error:  # a folder, or neither a name nor a node of a file
        where = Where(stage="discover", location=shown(sources))
        raise SettingsError(f"the sources are not files: {error}", where, 'write Glob("kernels/*.py")') from error
    for node in nodes:
        if "." in node.name.removesuffix(".py"):
            where = Where(stage="discover", location=str(node))
            raise SettingsError("a definition file's name cannot have a dot in it", where, "rename the file")
    return nodes


def _settings(env: Any, package: str | None, keywords: dict[str, Any]) -> Settings:
    place = f"KernelPackage({shown(package)})"
    reject_unknown(keywords, Where(stage="settings"), place)
    given = {
        name: env[PREFIX + variable]
        for variable, name in COMMAND_LINE.items()
        if variable in SCons.Script.ARGUMENTS or PREFIX + variable in SCons.Script.ARGUMENTS
    }
    if command_line.is_given("cluster"):
        given["cluster"] = command_line.given("cluster")  # an empty address means no cluster
    layers = [
        ("pyproject.toml", env["KERNELWRIGHT_TABLE"]),
        (place, ({} if package is None else {"package": package}) | keywords),
        ("environment", environment_layer(os.environ)),
        ("command line", given),
    ]
    merged = merge(layers, backends.choices())
    if not merged.package:
        remedy = 'write env.KernelPackage("name", ...), or package = "name" in [tool.kernelwright]'
        raise SettingsError("the package has no name", Where(stage="settings", location="KernelPackage()"), remedy)
    return merged


class _Variables(SCons.Variables.Variables):  # type: ignore[misc]
    """SCons's variables, shown in ``scons -h`` by the name that the user types."""

    def FormatVariableHelpText(
        self, env: Any, key: str, help: str, default: Any, actual: Any, aliases: Any = None
    ) -> str:
        return f"  {key.removeprefix(PREFIX)}={actual}\n      {help}\n"


def _add_variables(env: Any, defaults: Settings) -> None:
    variables = _Variables(None, SCons.Script.ARGUMENTS)
    for variable, name in COMMAND_LINE.items():
        declared = SETTINGS[name]
        text = declared.kind.text(getattr(defaults, name))
        variables.Add((PREFIX + variable, variable), declared.help_line, text)
    variables.Update(env)
    _warn_of_misspelled()
    if not SCons.Script.GetOption("help"):
        return
    text = variables.GenerateHelpText(env)
    SCons.Script.Help(
        f"Kernelwright: settings, given as NAME=value:\n{text}{TARGET_HELP}", append=True, local_only=True
    )


def _warn_of_misspelled() -> None:
    """Warn of each NAME=value that looks like one of our settings, though the user's build file may read it.

    Also warn of environment variables that look like ours: otherwise a remote cache would stay unused without a word.
    """
    for name in unknown_variables(os.environ):
        sys.stderr.write(f"kernelwright: nothing reads the variable {shown(name)}: see docs/remote-cache.md\n")
    for name in SCons.Script.ARGUMENTS:
        near = difflib.get_close_matches(name.upper(), COMMAND_LINE, 1, 0.8)
        if near and name.removeprefix(PREFIX) not in COMMAND_LINE:
            sys.stderr.write(f"kernelwright: {name}= is no setting; did you mean {near[0]}=?\n")


TARGET_HELP = f"""
Targets: the packages by default; the name of a package, or of a kernel, builds that one; check runs every built variant
against its reference; sass and ptx show the device code of every variant as text, beside its cubins; wheel puts the
package's wheel into dist; tune measures which variants suit this machine (KERNELS=gemm, TUNE="--budget 10m");
compile_commands writes build/compile_commands.json; -c cleans.{os.linesep}"""
