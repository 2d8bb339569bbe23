"""WHEEL: writes the wheels of a package, and puts them into ``dist/``."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from .. import backends
from ..core.arch import FAMILIES
from ..core.errors import KernelwrightError, Where
from ..core.files import SCRATCH, make_way, pretty_json, remove_stale_scratch, sha256_of, write_atomically
from ..core.private import private_folders
from ..core.quantity import parse_size
from ..core.records import Record, decoded, read_json
from ..core.request import ASIDE
from ..core.version import VERSION
from ..package import WHEEL_LIST
from ..package.assemble import provider_package
from ..package.size_table import kernel_sizes, size_table
from ..package.wheel_variants import NULL, require_groups, without_label
from .stage import Stage, files_in
from .stage_run import StageRun

if TYPE_CHECKING:
    from ..define.settings import Settings
    from ..package.content import BuiltFiles
    from ..package.project import Project
    from ..package.source import Source
    from ..package.wheel_variants import Group
    from .context import Context

NAME = "wheel"
MAIN = "package"
"""Stem of the file that is the wheel of a package; a wheel of device code has the name of its arch."""

WRITERS = ("auditwheel", "packaging", "pyproject-metadata", "wheel")
"""Distributions that decide what a wheel's bytes are."""


@dataclass(frozen=True)
class Wheels:
    """What is in the wheels of a package besides its files.

    Arguments:
        project: what the wheel of the package says of itself.
        whole: whether there is a wheel of the whole package. Of several toolkits with wheel variants the first has it.
        providers: arch -> what the wheel with its device code says; none, if the package is not split by arch.
        variants: label of a wheel variant -> the GPUs that it is for; None: those machines that no other one is for.
        partial: what takes the place of both if the package lacks something; None: a run makes no such package.
        limit: the largest size of a wheel; empty: there is none.
        writers: what decides what a wheel's bytes are.
        family: the family of CPUs that the package is for.
        folder: that of the package, whose manifest is a source.
        work: that of the package's kernels.
        device: that of their device code.
    """

    package: str
    project: Project
    whole: bool
    providers: Mapping[str, Project]
    variants: Mapping[str, Group | None]
    partial: tuple[Project, Mapping[str, Project]] | None
    source: Source
    limit: str
    writers: tuple[str, ...]
    family: str
    folder: Path = field(metadata=ASIDE)
    work: Path = field(metadata=ASIDE)
    device: Path = field(metadata=ASIDE)

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Write the wheels, look into them, and note their names."""
        from ..package.content import read_built

        built = read_built(self.folder, self.package)
        request = self
        if self.partial and built.is_partial:
            request = replace(self, project=self.partial[0], providers=self.partial[1])
        wheels = _written(request, built, scratch)
        _check(wheels, request, stage)
        names = {stem: wheel.name for stem, wheel in wheels.items()}
        (scratch / "wheel.json").write_text(pretty_json({"names": names}), encoding="utf-8")
        for stem, wheel in wheels.items():
            wheel.rename(scratch / f"{stem}.whl")


def publish(stage: Stage, context: Context, replacing: bool) -> KernelwrightError | None:
    """Put the wheels that the stage has made into ``dist/``; what went wrong, as an error that a user can read.

    Arguments:
        replacing: whether they take the place of wheels of the same name with other content.
    """
    dist = context.run.top / "dist"
    *wheels, record = map(Path, stage.paths)
    try:
        if list_file := os.environ.get(WHEEL_LIST):
            _hand_over(Path(list_file), wheels, record)
        else:
            put_into(dist, wheels, record, context, replacing)
    except KernelwrightError as error:
        return error
    except OSError as error:
        return _refused(error, dist)
    return None


def _refused(error: OSError, dist: Path) -> KernelwrightError:
    """The error for a wheel that could not be put into ``dist``; the path in ``error`` may be that of a part of one."""
    place = Path(error.filename or dist)
    if place.parent != dist or place.name.startswith(SCRATCH):
        place = dist
    remedy = (
        f"see to it that {dist.name} is a folder that you can write to, with room for the wheels, and run scons again"
    )
    message = f"the wheels cannot be put into {place}: {error.strerror or error}"
    return KernelwrightError(message, Where(stage=NAME), remedy)


def _hand_over(list_file: Path, wheels: Sequence[Path], record: Path) -> None:
    """Tell the build backend, which has a folder of its own for wheels, where they are, and what they are called."""
    names = read_json(record, _names, "run scons again")
    with list_file.open("a") as stream:
        stream.writelines(f"{names[wheel.stem]}\t{wheel}\n" for wheel in wheels)


def put_into(dist: Path, wheels: Sequence[Path], record: Path, context: Context, replacing: bool = False) -> None:
    """Copy finished wheels to where users look for them, all or none; those that are there already stay.

    Raises:
        KernelwrightError: a wheel of that name with other content is there, and ``replacing`` is false.
    """
    names = read_json(record, _names, "run scons again")
    # The package's wheel is copied last, so that it is never there without the wheels that it needs.
    places = {dist / names[wheel.stem]: wheel for wheel in reversed(wheels)}
    if dist.is_dir():
        remove_stale_scratch(dist)
    changed = {target: wheel for target, wheel in places.items() if not _is_copy(target, wheel)}
    replaced = [target.name for target in changed if target.is_file()]
    if not replacing:
        require_no_other(changed, ", or write scons --replace wheel")
    _copy_all(changed)
    for line in size_table(kernel_sizes(context.package, context.work, context.device_work)):
        context.run.note(f"  {line}")
    for wheel in wheels:
        name, size = names[wheel.stem], f"{wheel.stat().st_size:,} bytes"
        instead = ", in place of one of that name with other content" if name in replaced else ""
        context.run.note(f"kernelwright: dist/{name} ({size}{instead})")


def finish(stages: Sequence[Stage], context: Context) -> KernelwrightError | None:
    """Look at ``dist/`` when all wheels of a package are there: name those of earlier builds, and tell installers of
    wheel variants; what went wrong, as an error that a user can read."""
    if os.environ.get(WHEEL_LIST):
        return None
    dist = context.run.top / "dist"
    try:
        names = [name for stage in stages for name in names_of(stage).values()]
        for line in _leftovers(dist, names):
            context.run.note(f"kernelwright: {line}")
        for written in write_indexes(dist, names):
            context.run.note(f"kernelwright: dist/{written} tells installers which wheel variant is for which machine")
    except KernelwrightError as error:
        return error
    except OSError as error:
        return _refused(error, dist)
    return None


def names_of(stage: Stage) -> dict[str, str]:
    """The names of the wheels that a stage has made, by their stems."""
    return read_json(Path(stage.outputs["wheel.json"]), _names, "run scons again")


def write_indexes(dist: Path, names: Collection[str]) -> list[str]:
    """Write the file with the properties of all wheel variants in a folder that have the project and version of some.

    Those of an earlier build are left out, so that no installer takes one of them. Those for another family of CPUs may
    come from another machine, and are not.

    Arguments:
        names: of wheels that were put there; those without a label make no such file.

    Returns:
        The names of the files that were written.

    Raises:
        KernelwrightError: two wheels cannot be offered together, or one is damaged.
    """
    from ..package.variant_checks import properties_of
    from ..package.wheel_variants import begin_of, index_name, index_text, label_in

    written = []
    for begin in sorted({begin_of(name) for name in names if label_in(name)}):
        same = [path for path in dist.iterdir() if path.name.startswith(f"{begin}-") and label_in(path.name)]
        listed = [path for path in same if path.name in names or _other_family(path.name, names)]
        variants = {path.name: (label_in(path.name), properties_of(path)) for path in listed}
        write_atomically(dist / index_name(begin), index_text(variants))
        written.append(index_name(begin))
    return written


def _leftovers(dist: Path, names: Sequence[str]) -> Iterator[str]:
    """Lines about wheels in ``dist`` of the same project and version that this build does not make, such as of an arch,
    a CUDA toolkit or a family of CPUs that was dropped."""
    # The first of them is the wheel of a package; others have names of their own, with the arch in them.
    project, arch = re.escape(names[0].split("-")[0]), r"(_(sm|compute)_[0-9]+[af]?)?"
    versions = {TOOLKIT_LABEL.sub("", name.split("-")[1]) for name in names}
    same = re.compile(rf"{project}{arch}-(?P<version>[^-]+)-.*\.whl")
    for name in sorted(path.name for path in dist.iterdir()):
        found = same.fullmatch(name)
        if found is None or name in names or TOOLKIT_LABEL.sub("", found["version"]) not in versions:
            continue
        other = _other_family(name, names)
        why = f"is for {other}, and this build is not: remove it, unless another machine has made it"
        yield f"dist/{name} has this version and {why if other else 'is of an earlier build: remove it'}"


TOOLKIT_LABEL = re.compile(r"[+.](cu\d+)+(?=\.|$)")
"""The part of a version that names CUDA toolkits."""


def _other_family(wheel: str, names: Iterable[str]) -> str:
    """The family of CPUs that a wheel is for, if some others are for other families; empty: it is for one of theirs."""
    of = {name: without_label(name).removesuffix(".whl") for name in (wheel, *names)}
    families = {name: next((family for family in FAMILIES if of[name].endswith(f"_{family}")), "") for name in of}
    mine = families.pop(wheel)
    return mine if mine not in families.values() and any(families.values()) else ""


def _names(document: Record) -> dict[str, str]:
    names = document.record("names")
    return {stem: names.file_name(stem) for stem in names.raw}


def _is_copy(target: Path, wheel: Path) -> bool:
    return target.is_file() and sha256_of(target) == sha256_of(wheel)


def require_no_other(wheels: Mapping[Path, Path], way_out: str = "") -> None:
    """Raise a KernelwrightError if a wheel would take the place of one with other content; damaged ones do not count.

    Arguments:
        wheels: where it is to be -> where it is.
        way_out: a further remedy.
    """
    for target, wheel in wheels.items():
        if target.is_file() and not _is_copy(target, wheel) and _is_wheel(target):
            message = f"{target.parent.name}/{target.name} is there, with other content than the wheel that was built"
            remedy = f"remove it, or give the project another version{way_out}"
            raise KernelwrightError(message, Where(stage=NAME), f"{remedy}; the new one is {wheel}")


def _is_wheel(wheel: Path) -> bool:
    """Whether a file is a wheel of a kernel package with all that it lists."""
    from ..package.verify import manifest_of

    try:
        return bool(manifest_of(wheel).raw)
    except KernelwrightError:
        return False


def _copy_all(wheels: Mapping[Path, Path]) -> None:
    """Copy files to their targets; if one of them cannot be copied, no target is changed."""
    parts = {target: target.with_name(f"{SCRATCH}{os.getpid()}-{target.name}") for target in wheels}
    try:
        for target, wheel in wheels.items():
            target.parent.mkdir(exist_ok=True)
            make_way(target)
            if target.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
            shutil.copyfile(wheel, parts[target])
        for target, part in parts.items():
            part.replace(target)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def _require_size(stem: str, wheel: Path, request: Wheels, where: Where) -> None:
    """Raise a KernelwrightError if a wheel is larger than the settings allow."""
    limit, size = request.limit, wheel.stat().st_size
    if limit and size > parse_size(limit) * 1024:
        kernels = [
            found for found in kernel_sizes(request.folder, request.work, request.device) if found.archs
        ]  # the launcher has none
        bytes_of = {k.name: k.archs.get(stem, 0) if stem in request.providers else k.library for k in kernels}
        names = sorted(bytes_of, key=lambda name: (-bytes_of[name], name))[:3]
        largest = ", ".join(f"{name} ({bytes_of[name]:,} bytes)" for name in names)
        subject = f"the wheel {wheel.name}" if request.providers or request.variants else "the wheel"
        message = f"{subject} has {size:,} bytes, and max_wheel_size is {limit}"
        raise KernelwrightError(message, where, f"build fewer archs or variants; the largest kernels are {largest}")


def make(
    context: Context,
    definitions: Sequence[str],
    manifest: str,
    outside: Sequence[str] = (),
    name: str = "",
    first: bool = True,
) -> Stage:
    """The stage that writes the wheels of a package.

    Arguments:
        name: of a distribution of its own, for a further package of a project; empty: it is that of the project.
        definitions: the definition files, relative to the project's folder.
        manifest: path of the package's manifest.json.
        outside: names of the files outside of the project that the kernels depend on.
        first: whether it is the package of the first CUDA toolkit, or of the only one.

    Raises:
        KernelwrightError: pyproject.toml does not describe a wheel, or wheel variants cannot have these archs.
    """
    from ..define.settings import read_document
    from ..package.platform import require_platform
    from ..package.project import PARTIAL, Own, own_of, provider_project, read_project
    from ..package.source import find_source

    require_platform()
    top, settings = context.run.top, context.settings
    package, archs = settings.package, settings.providers
    document = read_document(top / "pyproject.toml")
    called = backends.resolve(settings.backends, settings.targets)

    def described(own: Own) -> tuple[Project, dict[str, Project]]:
        named = {arch: provider_package(package, arch) for arch in archs}
        providers = {arch: provider_project(top, document, arch, named[arch], own) for arch in archs}
        return read_project(top, document, providers=archs, called_through=called, own=own), providers

    own = own_of(settings, name)
    project, providers = described(own)
    request = Wheels(
        package=package,
        project=project,
        whole=first or settings.split != "variant",
        providers=providers,
        variants=_variants(settings, first),
        partial=described(own.labelled(PARTIAL)) if context.run.partial else None,
        source=find_source(top, definitions, outside),
        limit=settings.max_wheel_size or "",
        writers=(VERSION, *(f"{writer} {version(writer)}" for writer in WRITERS)),
        family=settings.family,
        folder=context.package,
        work=context.work,
        device=context.device_work,
    )
    stems = (*([MAIN] if request.whole else []), *archs, *request.variants)
    outputs = files_in(context.wheels / package, (*(f"{stem}.whl" for stem in stems), "wheel.json"))
    sources = [manifest, *(f"{top}/{file}" for file in project.files)]
    subject = settings.labelled(project.name)
    return Stage("WHEEL", subject, Where(stage=NAME), request, outputs, sources, cacheable=False)


def _variants(settings: Settings, first: bool) -> dict[str, Group | None]:
    """The labels of the wheel variants, and the GPUs that each is for."""
    if settings.split != "variant":
        return {}
    toolkit = settings.label if settings.cuda_label == "yes" else ""
    groups = require_groups(settings.archs_of("cuda"), f"archs{f' of {toolkit}' if toolkit else ''}")
    return {**({NULL: None} if first else {}), **{group.label(toolkit): group for group in groups}}


def _written(request: Wheels, built: BuiltFiles, scratch: Path) -> dict[str, Path]:
    """Write the wheels. The name of the package's wheel has the platform that its libraries need.

    Returns:
        Stem -> path.
    """
    from ..package.archive import ANY, wheel_name, write_wheel
    from ..package.content import package_files, provider_files, variant_files
    from ..package.drivers import with_driver
    from ..package.manifest import linked_libraries
    from ..package.platform import platform_tag, untagged
    from ..package.sbom import with_sbom

    def write(project: Project, files: Mapping[str, bytes], platform: str, label: str = "") -> Path:
        path = scratch / wheel_name(project, platform, label)
        variant = _variant_text(label, request.variants[label], files) if label else ""
        write_wheel(path, with_sbom(with_driver(project, files), files), files, platform, source.time, variant)
        return path

    project, source = request.project, request.source
    files = package_files(built, project, source)
    has_libraries = any(name.endswith(".so") for name in files)
    others = linked_libraries(decoded(built.manifest))
    family = request.family
    platform = platform_tag(write(project, files, untagged(family)), family, others) if has_libraries else ANY
    wheels = {MAIN: write(project, files, platform)} if request.whole else {}
    for label, group in request.variants.items():
        wheels[label] = write(project, variant_files(built, project, source, label, group), platform, label)
    for arch, provider in request.providers.items():
        wheels[arch] = write(provider, provider_files(built, project, source, arch), ANY)
    return wheels


def _variant_text(label: str, group: Group | None, files: Mapping[str, bytes]) -> str:
    """The text of ``variant.json`` of a wheel with some files."""
    from ..package.drivers import least_drivers
    from ..package.wheel_variants import properties, variant_text

    manifest = next(content for name, content in files.items() if name.endswith("/manifest.json"))
    return variant_text(label, properties(group, least_drivers(Record(decoded(manifest), ""))) if group else {})


def _check(wheels: Mapping[str, Path], request: Wheels, stage: StageRun) -> None:
    """Raise a KernelwrightError if a wheel is not right or too large, or if they do not fit together."""
    from ..package.verify import verify_together, verify_wheel

    private, where = private_folders(stage.run.top), stage.where
    problems_of = {path.name: verify_wheel(path, private, own_points=True) for path in wheels.values()}
    problems = [f"{name}: {problem}" for name, listed in problems_of.items() for problem in listed]
    problems = problems or verify_together(list(wheels.values()))
    if problems:
        remedy = "mend pyproject.toml, or what definitions put into their code; flags such as -G record paths"
        raise KernelwrightError(f"the wheel is not right: {'; '.join(problems)}", where, remedy)
    for stem, path in wheels.items():
        _require_size(stem, path, request, where)
