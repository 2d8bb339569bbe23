"""Packs what a machine with a GPU and no network needs beside this repository, where TVM and the compilers are.

    python tests/gpu/pack.py [build/gpu_bundle]

The bundle has ``packages`` (the kernel library and the probes, for all backends), ``variants`` (the probes with PTX
only: as it is, damaged, for a newer driver, and altered after the build), ``cases`` (inputs and expected outputs),
``wheels`` (what the backends need there, for its Python), and ``languages`` (packages in other languages, and built in
other ways; see ``pack_languages.py``). It is an error if bundle and repository together are larger than the limit.
``run_all.sh`` runs everything.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SITE_SCONS = ROOT / "site_scons"
sys.path[:0] = [str(HERE), str(SITE_SCONS)]

from pack_languages import PARTS, add_languages  # noqa: E402

LIMIT = 64 * 2**20
"""Bytes that the bundle and the files of the repository may have together."""

BACKENDS = "tvm_ffi,cython,torch,jax,cuda_core"

WHEELS = ("apache-tvm-ffi", "jax-tvm-ffi", "cuda-core", "cuda-bindings", "cuda-pathfinder", "typing-extensions")
"""What the backends import there; of each the version that is installed here."""

SANITIZER = "nvidia-cuda-sanitizer-api==13.0.85"
"""compute-sanitizer, of the CUDA release whose compiler this project pins; it is carried where it fits."""

GLIBCS = (17, 24, 25, 26, 27, 28, 31, 34)

SCONSTRUCT = """\
from kernelwright.scons import generate

env = Environment(tools=[generate])
env.Default(env.KernelPackage("{package}", env.Glob("kernels/*.py")))
"""

PROBES = HERE / "probes.py"


def build(folder: Path, package: str, definitions: Sequence[Path], options: argparse.Namespace, archs: str) -> Path:
    """Build some definition files as a package in a project of its own, which is kept for the next time."""
    kernels = folder / "kernels"
    shutil.rmtree(kernels, ignore_errors=True)
    kernels.mkdir(parents=True)
    for path in definitions:
        shutil.copy(path, kernels)
    (folder / "SConstruct").write_text(SCONSTRUCT.format(package=package))
    (folder / "pyproject.toml").write_text("")
    words = [f"TARGETS={options.targets}", f"ARCHS={archs}", f"BACKENDS={options.backends}", f"-j{options.jobs}"]
    run_scons(folder, words)
    return folder / "build" / package


def run_scons(folder: Path, words: Sequence[str]) -> None:
    """Build a project, and print the last line of what SCons says."""
    command = [sys.executable, "-m", "SCons", "-Q", *words]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr)[-6000:]
        raise SystemExit(f"{' '.join(command)}\nended with status {done.returncode} in {folder}\n{said}")
    print(f"{folder.name}: {done.stdout.splitlines()[-1]}", flush=True)


def environment() -> dict[str, str]:
    """That of scons: this repository's Kernelwright, and none of the settings of whoever packs."""
    import os

    kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNELWRIGHT_")}
    return kept | {"PYTHONPATH": str(SITE_SCONS)}


def copied(package: Path, folder: Path) -> Path:
    """A package in another folder, without what Python has left in it."""
    target = folder / package.name
    shutil.copytree(package, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def edit_ptx(package: Path, edit: Callable[[str], str], seal: bool) -> None:
    """Change the PTX of a package; the manifest is made to fit it, if that is asked for."""
    from kernelwright.package.manifest import sealed_manifest

    path = package / "manifest.json"
    manifest = path.read_text()
    for image in sorted(package.glob("_images/**/*.ptx")):
        before = image.read_bytes()
        image.write_text(edit(before.decode()))
        after = image.read_bytes()
        if seal:
            manifest = manifest.replace(sha256(before).hexdigest(), sha256(after).hexdigest())
            assert len(before) == len(after), "the manifest has sizes, too"
    if seal:
        path.write_text(sealed_manifest(manifest.rpartition(',\n "digest": ')[0]))


def newer(ptx: str) -> str:
    """PTX as a compiler of the future writes it."""
    return re.sub(r"^\.version \d\.\d$", ".version 9.9", ptx, flags=re.M)


def damaged(ptx: str) -> str:
    """PTX with an instruction that there is not; of the same length."""
    return re.sub(r"\bst\.global\.", "st.glabol.", ptx)


def altered(ptx: str) -> str:
    """Sound PTX that is not what the manifest says."""
    return ptx + "\n"


def add_variants(ptx_only: Path, folder: Path) -> None:
    """The probes with PTX only, and what may have become of them."""
    copied(ptx_only, folder / "ptx")
    for name, edit, seal in (("newer", newer, True), ("damaged", damaged, True), ("altered", altered, False)):
        edit_ptx(copied(ptx_only, folder / name), edit, seal)


def add_wheels(folder: Path, options: argparse.Namespace) -> None:
    """Download the wheels for the Python of the other machine; a sanitizer only if everything still fits with it."""
    folder.mkdir()
    platforms = [word for glibc in GLIBCS for word in ("--platform", f"manylinux_2_{glibc}_x86_64")]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    command += ["--python-version", options.python, *platforms, "--platform", "manylinux2014_x86_64"]
    subprocess.run([*command, "-d", str(folder), *(f"{name}=={version(name)}" for name in WHEELS)], check=True)
    before = set(folder.iterdir())
    subprocess.run([*command, "-d", str(folder), SANITIZER], check=True)
    if size(options.folder) + tracked() > LIMIT:
        for wheel in set(folder.iterdir()) - before:
            print(f"left out, for its size: {wheel.name}: {wheel.stat().st_size:,} bytes")
            wheel.unlink()


def size(path: Path) -> int:
    """Bytes that all files below a folder have in an archive."""
    return sum(archived(file) for file in path.rglob("*") if file.is_file())


def archived(file: Path) -> int:
    """Bytes that a file takes in a tar archive: blocks of 512 bytes, and one in front."""
    return 512 + (file.stat().st_size + 511) // 512 * 512


def tracked() -> int:
    """Bytes of the files of the repository, those that git does not know yet among them, but not those it ignores."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sum(archived(ROOT / name) for name in listed.split("\0") if name and (ROOT / name).is_file())


def report(folder: Path, limit: int) -> int:
    """Say what takes how much; 1 if it is too much."""
    parts = {path.name: size(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    parts |= {"the repository's files": tracked()}
    total = sum(parts.values())
    for name, count in [*parts.items(), ("all", total), ("limit", limit)]:
        print(f"{count:14,} bytes  {name}")
    (folder / "bundle.json").write_text(json.dumps({"bytes": parts, "limit": limit}, indent=1) + "\n")
    if total > limit:
        print(f"{folder}: too large by {total - limit:,} bytes")
        print("  remedy: fewer archs, kernels or cases, or --languages ''")
    return int(total > limit)


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python tests/gpu/pack.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "gpu_bundle", help="the bundle")
    parser.add_argument("--work", type=Path, help="where packages are built; default: the bundle's name with _work")
    parser.add_argument("--archs", default="x86-64-v3,sm_90a", help="those of the packages")
    parser.add_argument("--targets", default="llvm,cuda", help="those of the packages")
    parser.add_argument("--backends", default=BACKENDS, help="those of the packages")
    parser.add_argument("--kernels", help="definition files of the library, without .py; default: all of kernels/")
    parser.add_argument("--languages", default=",".join(PARTS), help="what else is built; empty: nothing")
    parser.add_argument("--python", default="3.12", help="the version of Python of the other machine")
    parser.add_argument("--no-wheels", action="store_true", help="download nothing")
    parser.add_argument("--jobs", type=int, default=2, help="the N of -jN")
    parser.add_argument("--limit", type=int, default=LIMIT, help="bytes of bundle and repository together")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Pack."""
    options = parsed(words)
    options.folder = options.folder.absolute()
    work = options.work or options.folder.with_name(f"{options.folder.name}_work")
    jobs = f"-j{options.jobs}"
    shutil.rmtree(options.folder, ignore_errors=True)
    (options.folder / "packages").mkdir(parents=True)
    names = options.kernels.split(",") if options.kernels else [p.stem for p in (ROOT / "kernels").glob("[!_]*.py")]
    definitions = [ROOT / "kernels" / f"{name}.py" for name in sorted(names)]
    needed = [*definitions, *(ROOT / "kernels").glob("_*.py")]
    library = copied(build(work / "library", "kw_kernels", needed, options, options.archs), options.folder / "packages")
    probes = build(work / "probes", "gpu_probes", [PROBES], options, options.archs)
    copied(probes, options.folder / "packages")
    if "cuda" in options.targets.split(","):
        from kernelwright.core.arch import is_ptx, target_of

        cpu = [arch for arch in options.archs.split(",") if target_of(arch) == "llvm"]
        if any(target_of(arch) == "cuda" and not is_ptx(arch) for arch in options.archs.split(",")):
            options.backends = "tvm_ffi,cuda_core"
            probes = build(work / "ptx", "gpu_probes", [PROBES], options, ",".join([*cpu, "compute_80"]))
        add_variants(probes, options.folder / "variants")
    if options.languages:
        add_languages(options.folder / "languages", work, options, lambda at, words: run_scons(at, [*words, jobs]))
    sys.path.insert(0, str(ROOT / "kernels"))
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # TVM would import it, which takes seconds
    from make_cases import write_all

    print(f"{write_all(definitions, library, options.folder / 'cases')} cases")
    if not options.no_wheels:
        add_wheels(options.folder / "wheels", options)
    return report(options.folder, options.limit)


if __name__ == "__main__":
    sys.exit(main())
