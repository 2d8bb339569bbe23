"""The command ``kernelwright``: small helpers around a build."""

from __future__ import annotations

import argparse
import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .backends.launcher import LAUNCHER
from .backends.own_code import cuda_runtime
from .core.dependencies import IN_PACKAGE
from .core.errors import KernelwrightError, ToolchainError, Where, printable
from .core.own_environment import OwnEnvironment
from .core.version import VERSION
from .define.settings import Settings, read_pyproject
from .frontends.tilelang import program as tilelang_program
from .frontends.triton import program as triton_program
from .toolchain.elsewhere import Elsewhere
from .toolchain.fatbin import find_fatbinary
from .toolchain.nvrtc import PROGRAM
from .toolchain.package_folder import package_folder
from .toolchain.probe import Toolchain
from .toolchain.tvm import tvm_ffi_includes

TOOLS = (
    *("nvcc", "fatbinary", "cc", "launcher", "tvm_ffi", "dlpack"),
    *("python", "python_include", "nvrtc", "nvrtc_compile", "cuda_include", "cuda_runtime", "tilelang"),
)
"""What ``kernelwright tool`` knows, by the names that scripts have for it."""

OPTIONAL = {
    "nvrtc": "only cuda_compiler = nvrtc needs it: pip install 'kernelwright[nvrtc]'",
    "tilelang": f"only definitions in TileLang need it: {tilelang_program.ENVIRONMENT.remedy}",
    "triton": f"only definitions in Triton need it: {triton_program.ENVIRONMENT.remedy}",
}
"""Tools that only a setting asks for, and which; that one is missing is nothing wrong."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status (0 well, 1 a problem was found, 2 wrong usage)."""
    try:
        status = run(list(sys.argv[1:] if arguments is None else arguments))
        print(end="", flush=True)  # what is in the buffer, where there is any stdout
    except BrokenPipeError:
        # Whoever reads has seen enough, as `head` has. What is left at the end of Python goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def run(words: Sequence[str]) -> int:
    """Run the command with its arguments; returns the exit status of :func:`main`."""
    parser = argparse.ArgumentParser(prog="kernelwright", description="Helpers around a Kernelwright build.")
    parser.add_argument("--version", action="version", version=f"kernelwright {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="say which tools are found, and what is wrong with them")
    tool = commands.add_parser("tool", help="print the path of a tool, as compile.sh scripts use it")
    tool.add_argument("name", type=known_tool, help=f"{', '.join(TOOLS)}, or {IN_PACKAGE}FOLDER")
    add_report(commands)
    add_cache(commands)
    add_tune(commands)
    add_worker(commands)
    init = commands.add_parser("init", help="make a new project with a kernel, its test and a CI workflow")
    init.add_argument("name", help="name of the project, such as acme-kernels; a folder of that name is made here")
    add_import(commands)
    check = commands.add_parser("verify", help="check a wheel: what it installs, its digests, archs, paths and tag")
    check.add_argument("wheels", nargs="+", metavar="WHEEL", help="path of a wheel; several must also fit together")
    add_diff(commands)
    add_merge(commands)
    own = "accept commands and other entry points, if they refer to the wheel's own package"
    check.add_argument("--entry-points", action="store_true", help=own)
    check.add_argument(
        "--partial", action="store_true", help="accept a wheel of a partial build; what it lacks is listed"
    )
    cut = words.index("--") if words[:1] == ["merge"] and "--" in words else len(words)
    options = parser.parse_args(words[:cut])
    if options.command == "merge":
        return merge(options, words[cut + 1 :])
    if options.command == "diff":
        return diff(options)
    if options.command == "report":
        return report(options)
    if options.command == "cache":
        return cache(options)
    if options.command == "tune":
        return tune(options)
    if options.command == "worker":
        return worker(options)
    if options.command == "init":
        return init_project(options.name)
    if options.command == "import":
        return import_definitions(options)
    if options.command == "verify":
        return verify([Path(wheel) for wheel in options.wheels], options.entry_points, options.partial)
    with tempfile.TemporaryDirectory() as folder:
        toolchain = Toolchain(Path(folder, "toolchain.json"), dict(os.environ))
        return doctor(toolchain) if options.command == "doctor" else print_tool(toolchain, options.name)


def add_report(commands: Any) -> None:
    """Add the command ``report``; argparse has no public name for the type of ``commands``."""
    command = commands.add_parser("report", help="write a page with the timeline of a build and the code that it made")
    command.add_argument("folder", nargs="?", default=".", help="folder of the SConstruct (default: this one)")
    command.add_argument("--output", metavar="FILE", help="page to write (default: build/report.html in that folder)")
    command.add_argument(
        "--packages",
        metavar="FOLDER",
        action="append",
        help="folder that packages were built in, if not build: a variant_dir; may be given several times",
    )


def report(options: argparse.Namespace) -> int:
    """Write the report of a project."""
    # Imported here, because the other commands do not need it.
    from .report import make_report

    top = Path(options.folder)
    output = Path(options.output) if options.output else top / "build" / "report.html"
    try:
        line = make_report(top, output, options.packages or ["build"])
    except KernelwrightError as error:
        print(f"kernelwright: {error.message}; {error.remedy}", file=sys.stderr)
        return 1
    # The name of a folder may hold bytes that are not UTF-8.
    print(line.encode("utf-8", "backslashreplace").decode())
    return 0


CACHE_ACTIONS = {
    "list": "list the compiled kernels, the one used last first",
    "show": "show what is known of one kernel, and whether its files are intact",
    "size": "say how large the cache is",
    "prune": "remove what was used least recently, down to a size",
    "clear": "remove everything that can be made again",
    "verify": "check every file; the exit status is 1 if one is damaged",
}
"""What ``kernelwright cache`` can do with the cache of compile on demand -> what that is."""

SHARED_ACTIONS = {
    "push": "write what the build cache has to the remote cache",
    "pull": "read all finished kernels of the project out of the remote cache, and build nothing",
    "stats": "say what the build cache has, and what the last build took from it and from the remote cache",
    "keys": "make a pair of keys, to sign what is in the remote cache",
}
"""What it can do with the build cache and the remote cache of the project in the working folder -> what that is."""


def add_cache(commands: Any) -> None:
    """Add the command ``cache`` with what it can do."""
    folder = argparse.ArgumentParser(add_help=False)
    folder.add_argument("--dir", metavar="FOLDER", help="the cache (default: the one that is used in this folder)")
    command = commands.add_parser("cache", help="look at caches, remove something, or share it")
    actions = command.add_subparsers(dest="action", required=True)
    parsers = {name: actions.add_parser(name, help=text, parents=[folder]) for name, text in CACHE_ACTIONS.items()}
    for name, text in SHARED_ACTIONS.items():
        actions.add_parser(name, help=text)
    parsers["show"].add_argument("key", metavar="KEY", help="a key as in the list, or its first digits")
    parsers["prune"].add_argument("--to", metavar="SIZE", default="2G", help="what is kept at most (default: 2G)")
    parsers["verify"].add_argument("--remove", action="store_true", help="remove what is damaged")


def cache(options: argparse.Namespace) -> int:
    """Do something with a cache."""
    # Imported here, because the other commands do not need it.
    from .ondemand.listing import run
    from .state import shared

    more = {name: getattr(options, name) for name in ("key", "to", "remove") if hasattr(options, name)}
    try:
        if options.action in SHARED_ACTIONS:
            return shared.run(options.action)
        return run(options.action, options.dir, **more)
    except KernelwrightError as error:
        print(f"kernelwright: {error}", file=sys.stderr)
        return 1


def add_tune(commands: Any) -> None:
    """Add the command ``tune``; argparse has no public name for the type of ``commands``."""
    command = commands.add_parser("tune", help="measure which variants suit a device, and write tuning tables")
    command.add_argument(
        "kernels", nargs="*", metavar="KERNEL", help="kernels to tune (default: all that have a space)"
    )
    command.add_argument(
        "--file", action="append", metavar="FILE", help="a definition file (default: kernels/*.py of the project)"
    )
    command.add_argument(
        "--sizes",
        action="append",
        metavar="SIZES",
        help="m=1,16,64 or m=1:8192:x2 or m=1:100:+10; once for each symbol (default: those of the definition)",
    )
    command.add_argument(
        "--device", action="append", metavar="DEVICE", help="cpu or cuda:0 (default: the GPU, or else the CPU)"
    )
    command.add_argument(
        "--budget", metavar="TIME", help="how long it may take: 90s, 10m, 1h (default: until all is done)"
    )
    command.add_argument("--again", action="store_true", help="measure anew, also what was measured before")
    command.add_argument("--no-wait", action="store_true", help="fail if another process tunes, instead of waiting")
    command.add_argument("--check", action="store_true", help="measure the answers of the tables again, and write none")
    command.add_argument("--max-regret", metavar="PERCENT", help="with --check: what an answer may cost (default: 5%%)")
    command.add_argument("--list", action="store_true", help="list the tables, and what is stale in them")
    command.add_argument("--strict", action="store_true", help="with --list: exit status 1 if anything is stale")


def tune(options: argparse.Namespace) -> int:
    """Tune kernels, check their tables, or list these."""
    # Imported here, because the other commands do not need it.
    from .tune.command import tune as run

    return run(options)


def add_worker(commands: Any) -> None:
    """Add the command ``worker``; argparse has no public name for the type of ``commands``."""
    command = commands.add_parser("worker", help="do runs of compilers for builds elsewhere, as a worker of a cluster")
    command.add_argument("address", metavar="ADDRESS", help="of a Dask scheduler: tls://host:8786")
    command.add_argument("--threads", type=_count, help="how many runs it does at once (default: one for each CPU)")
    default = Settings().cluster_certificates
    command.add_argument("--certificates", metavar="FOLDER", default=default, help=f"for TLS (default: {default})")
    command.add_argument("--no-nanny", action="store_true", help="start no process that starts it again if it dies")


def worker(options: argparse.Namespace) -> int:
    """Run a worker until it is ended."""
    # Imported here, because the other commands do not need it.
    from .cluster.command import start_worker
    from .define.cluster_address import check_address

    threads = options.threads or len(os.sched_getaffinity(0))
    try:
        check_address(options.address, Where(stage="settings"))
        folder = Path(options.certificates).expanduser()
        return start_worker(options.address, threads, folder, not options.no_nanny)
    except KernelwrightError as error:
        print(f"kernelwright: {error}", file=sys.stderr)
        return 1


def init_project(name: str) -> int:
    """Make a new project in the working folder."""
    # Imported here, because the other commands do not need it.
    from .init import make_project

    try:
        folder = make_project(name, Path.cwd())
    except (KernelwrightError, OSError) as error:
        print(f"kernelwright: {error}", file=sys.stderr)
        return 1
    print(f"{folder.name} is made. Next: cd {folder.name} && pip install --no-build-isolation '.[test]' && pytest")
    return 0


def add_import(commands: Any) -> None:
    """Add the command ``import``; argparse has no public name for the type of ``commands``."""
    command = commands.add_parser("import", help="write a definition file for the device functions of a CUDA source")
    command.add_argument("source", metavar="FILE", help="path of a .cu file, or of a header")
    output = "definition file to write (default: one of the source's name, beside it)"
    command.add_argument("--output", metavar="FILE", help=output)


def import_definitions(options: argparse.Namespace) -> int:
    """Write a definition file for the device functions of a source."""
    # Imported here, because the other commands do not need it.
    from .importer.command import import_source

    try:
        lines = import_source(Path(options.source), Path(options.output) if options.output else None)
    except KernelwrightError as error:
        print(f"kernelwright: {error}", file=sys.stderr)
        return 1
    # The name of a file may hold bytes that are not UTF-8.
    print(lines.encode("utf-8", "backslashreplace").decode())
    return 0


def add_diff(commands: Any) -> None:
    """Add the command ``diff``; argparse has no public name for the type of ``commands``."""
    command = commands.add_parser("diff", help="say what differs between two wheels: kernels, registers, spills, sizes")
    command.add_argument("old", metavar="OLD", help="a wheel, or the folder of a built package")
    command.add_argument("new", metavar="NEW", help="another one of the same package")
    grown = "exit status 1 if a device function uses so many more %s"
    command.add_argument("--max-register-growth", metavar="N", type=_count, help=grown % "registers")
    command.add_argument("--max-spill-growth", metavar="BYTES", type=_count, help=grown % "bytes of spills")
    command.add_argument("--max-size-growth", metavar="PERCENT", type=_percent, help="likewise, if a kernel grows: 5%%")
    gone = "exit status 0 although a kernel, a variant or an arch is gone"
    command.add_argument("--allow-removed", action="store_true", help=gone)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 up")
    return int(text)


def _percent(text: str) -> float:
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)%", text, re.ASCII)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage, such as 5% or 2.5%")
    return float(found[1])


def diff(options: argparse.Namespace) -> int:
    """Print what differs between two wheels, or packages; exit status 1 if something is gone, or has grown too much."""
    # Imported here, because the other commands do not need it.
    from .package.diff import Limits, compare, read_package

    try:
        old, new = (read_package(Path(place)) for place in (options.old, options.new))
        limits = Limits(options.max_register_growth, options.max_spill_growth, options.max_size_growth)
        found = compare(old, new, limits)
    except KernelwrightError as error:
        print(f"kernelwright: {error}", file=sys.stderr)
        return 1
    for line in found.lines:
        print(line)
    for place, package in ((options.old, old), (options.new, new)):
        if package.partial:
            print(f"{printable(place)} was built partially: what it lacks counts as removed")
    gone = [] if options.allow_removed else found.gone
    for line in [*gone, *found.exceeded]:
        print(f"kernelwright: {line}", file=sys.stderr)
    return 1 if gone or found.exceeded else 0


def add_merge(commands: Any) -> None:
    """Add the command ``merge``; argparse has no public name for the type of ``commands``."""
    text = "assemble the packages of this folder's project from what shards have built (scons --shard 2/8)"
    command = commands.add_parser("merge", help=text, epilog="What follows -- is for scons: -- wheel ARCHS=sm_90a")
    command.add_argument(
        "folders", nargs="+", metavar="FOLDER", help="build cache of a shard, as its cache_dir names it"
    )
    command.add_argument("--build-missing", action="store_true", help="compile here what the shards lack")


def merge(options: argparse.Namespace, more: Sequence[str]) -> int:
    """Assemble packages from the build caches of shards.

    Arguments:
        more: further arguments for scons.
    """
    # Imported here, because the other commands do not need it.
    import subprocess

    command = [
        sys.executable,
        "-m",
        "SCons",
        "-Q",
        *(f"--merge={folder}" for folder in options.folders),
    ]
    command += [*(["--build-missing"] if options.build_missing else []), *more]
    sys.stdout.flush()
    return 1 if subprocess.run(command, check=False).returncode else 0


MOST_PROBLEMS = 50
"""How many problems of wheels are printed."""

LONGEST_PROBLEM = 1000
"""Characters of each."""


def verify(wheels: Sequence[Path], own_points: bool = False, partial: bool = False) -> int:
    """Print what is wrong with some wheels, each by itself and, if there is nothing, together.

    Arguments:
        partial: whether they may lack what could not be built.
        own_points: whether they may have entry points that refer to their own package.
    """
    # Imported here, because the other commands do not need it.
    from .package.verify import gaps_of, verify_together, verify_wheel
    from .runtime.loader import gap_text

    found: dict[Path, list[str]] = {}
    errors: list[KernelwrightError] = []
    for wheel in wheels:
        try:
            found[wheel] = verify_wheel(wheel, own_points=own_points)
        except KernelwrightError as error:
            errors.append(error)
    well = [wheel for wheel, listed in found.items() if not listed]
    misfits = verify_together(well)
    problems = [f"{wheel.name}: {problem}" for wheel, listed in found.items() for problem in listed]
    # What a wheel says of itself is a stranger's text: in one line each, and not without end.
    lines = [printable(problem)[:LONGEST_PROBLEM] for problem in [*problems, *misfits]]
    more = [f"and {len(lines) - MOST_PROBLEMS} problems more"] if len(lines) > MOST_PROBLEMS else []
    for line in [*errors, *lines[:MOST_PROBLEMS], *more]:
        print(f"kernelwright: {line}", file=sys.stderr)
    lacking = False
    for wheel in [] if misfits else well:
        gaps = [f"  {printable(gap_text(gap))[:LONGEST_PROBLEM]}" for gap in gaps_of(wheel)]
        told = "built partially (--partial accepts that), without" if gaps else "all well"
        print("\n".join([f"{printable(wheel.name)}: {told}", *gaps]))
        lacking = lacking or bool(gaps)
    return 1 if errors or problems or misfits or (lacking and not partial) else 0


def doctor(toolchain: Toolchain) -> int:
    """Print what is found, one line for each tool."""
    status = 0
    probes: dict[str, Callable[[], str]] = {
        "tvm": lambda: toolchain.lowerer().tvm,
        "tvm-ffi": lambda: toolchain.lowerer().tvm_ffi,
        "host compiler": lambda: toolchain.host_compiler("").version,
        "nvcc": lambda: "{0.version} at {0.path}".format(toolchain.nvcc("", toolchain.host_compiler(""))),
        "nvrtc": lambda: "{0.version} at {0.library}".format(toolchain.nvrtc()),
        "tilelang": lambda: "{0.version} at {0.python}".format(found_tilelang(toolchain)),
        "triton": lambda: found_triton(toolchain),
    }
    for name, probe in probes.items():
        try:
            print(f"{name}: {probe()}")
        except KernelwrightError as error:
            if name in OPTIONAL:
                print(f"{name}: {error.message}; {OPTIONAL[name]}")
                continue
            status = 1
            print(f"{name}: {error}")
    return status


def found_tilelang(toolchain: Toolchain) -> Elsewhere:
    """TileLang in the environment that the settings of this folder's project name.

    Raises:
        ToolchainError: there is none, or it is of another release.
    """
    environment = tilelang_program.ENVIRONMENT
    found = toolchain.tilelang(setting_of(environment.setting, Path.cwd()))
    _require_known(found.version, environment)
    return found


def found_triton(toolchain: Toolchain) -> str:
    """Triton and where it is: in the environment that these settings name, or in this one; raises the same."""
    environment = triton_program.ENVIRONMENT
    found = toolchain.triton(setting_of(environment.setting, Path.cwd()))
    # One beside TVM does not stand in for one that the setting names.
    _require_known("absent" if found.python and not found.path else found.version, environment)
    return f"{found.version} at {found.python or sys.executable}"


def _require_known(version: str, environment: OwnEnvironment) -> None:
    """Raise a ToolchainError for a compiler that is absent, or of another release."""
    setting, where = setting_of(environment.setting, Path.cwd()), Where(stage="settings")
    if version == "absent":
        empty = (
            f"the setting {environment.setting} is empty{', and it is not installed here' * bool(environment.shared)}"
        )
        message = f"{setting}, the setting {environment.setting}, has none" if setting else empty
        raise ToolchainError(message, where, environment.remedy)
    if not all(map(environment.knows, version.split(" and "))):
        message = f"there is {version}, and Kernelwright knows the launches of {environment.version}"
        raise ToolchainError(message, where, environment.remedy)


def setting_of(name: str, folder: Path) -> str:
    """A setting of the project that a folder belongs to; a path in it is relative to the project's folder."""
    top = next((place for place in (folder, *folder.parents) if (place / "pyproject.toml").is_file()), folder)
    setting = str(read_pyproject(top / "pyproject.toml").get(name, ""))
    return str(top / setting) if "/" in setting and not setting.startswith("~") else setting


def known_tool(name: str) -> str:
    """The name of a tool, or of a folder in an installed package.

    Raises:
        argparse.ArgumentTypeError: it is neither.
    """
    if name in TOOLS or name.startswith(IN_PACKAGE):
        return name
    raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(TOOLS)}, and does not begin with {IN_PACKAGE}")


def print_tool(toolchain: Toolchain, name: str) -> int:
    """Print the path of one tool."""
    compiler = toolchain.host_compiler
    paths: dict[str, Callable[[], object]] = {
        "cc": lambda: compiler("").path,
        "nvcc": lambda: toolchain.nvcc("", compiler("")).path,
        "cuda_runtime": lambda: cuda_runtime(toolchain.nvcc("", compiler("")).path, Where(stage="toolchain")),
        "fatbinary": lambda: find_fatbinary(toolchain.nvcc("", compiler(""))),
        "launcher": lambda: LAUNCHER,
        "tvm_ffi": lambda: tvm_ffi_includes()[0],
        "dlpack": lambda: tvm_ffi_includes()[1],
        "python": lambda: sys.executable,
        "python_include": lambda: sysconfig.get_path("include"),
        "nvrtc": lambda: toolchain.nvrtc().library,
        "nvrtc_compile": lambda: PROGRAM,
        "cuda_include": lambda: toolchain.nvrtc().include,
        "tilelang": lambda: found_tilelang(toolchain).path,
    }
    try:
        print(paths[name]() if name in paths else package_folder(name, Where(stage="toolchain"), "tool"))
    except KernelwrightError as error:
        print(error, file=sys.stderr)
        return 1
    return 0
