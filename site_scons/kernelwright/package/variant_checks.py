"""Checks that each machine gets what it runs: by wheel variants, or by the extras of a package without device code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import KernelwrightError, Where, shown
from ..core.files import read_record
from ..core.records import Record, decoded
from ..runtime.arch import suitability
from .assemble import provider_package
from .described import described, fields, record_problems
from .drivers import least_drivers
from .images import kept_images, label_of, listed_images
from .members import files_of
from .project import extra_of
from .wheel_variants import (
    ARCH,
    INFO_FILE,
    NAMESPACE,
    NULL,
    Group,
    begin_of,
    dotted,
    groups_of,
    index_name,
    index_text,
    label_in,
    properties,
    read_variant,
)

AGAIN = "make it again, with scons wheel or variantlib generate-index-json"


def properties_of(wheel: Path) -> dict[str, Any]:
    """The properties of a wheel variant.

    Raises:
        KernelwrightError: it cannot be read, is damaged, or has no properties that a build writes.
    """
    try:
        files = files_of(wheel)
        if isinstance(files, list):
            raise ValueError(files[0])
        if problems := list(record_problems(files)):
            raise ValueError(problems[0])
        return read_variant(described(files, INFO_FILE).encode(), label_in(wheel.name))
    except ValueError as error:
        where = Where(stage="wheel", location=str(wheel))
        raise KernelwrightError(f"it is no wheel variant: {error}", where, "remove it, or get it again") from error


def variant_problems(wheel: Path, files: Mapping[str, bytes], manifest: Record) -> Iterator[str]:
    """What is wrong with the label of a wheel and with its properties, by the code that is in it.

    Arguments:
        files: those of the wheel: path -> content.
        manifest: the only one in it, which lists these files and describes them well.
    """
    label, text = label_in(wheel.name), described(files, INFO_FILE)
    if not label == label_of(manifest) == (label if text else ""):
        said = [f"its name has {_told(label)}", f"its manifest has {_told(label_of(manifest))}"]
        yield f"{', '.join(said)}, and it has {'a' if text else 'no'} {INFO_FILE}"
    if not label or not text:
        return
    try:
        needs = read_variant(text.encode(), label)
        group = None if label == NULL else _group_in(needs, manifest)
    except ValueError as error:
        yield f"{INFO_FILE} is none that a build writes: {error}"
        return
    drivers = least_drivers(manifest)
    expected = properties(group, drivers) if group else {}
    missed = next((one for one in group.capabilities if not _runs(drivers, one)), None) if group else None
    if missed is not None:
        yield f"installers give it to GPUs of arch {dotted(missed)}, too, and none of its code runs there"
    elif needs != expected:
        yield f"{INFO_FILE} asks for {_words(needs)}, and its code needs {_words(expected)}"
    kept, listed = kept_images(manifest, group), {image.path for image in listed_images(manifest)}
    here = listed & manifest.record("files").raw.keys()
    yield from (f"{path} is missing, which machines run that it is for" for path in sorted(kept.keys() - here))
    yield from (f"{path} is for other machines than those that it is for" for path in sorted(here - kept.keys()))


def misfits(wheels: Mapping[Path, Record]) -> Iterator[str]:
    """What is wrong with wheel variants together that are well by themselves.

    Arguments:
        wheels: path -> manifest; also wheels without a label, and of other packages.
    """
    begins = {path: path.parent / begin_of(path.name) for path in wheels}
    for begin in sorted({begin for path, begin in begins.items() if label_in(path.name)}):
        same = {path: manifest for path, manifest in wheels.items() if begins[path] == begin}
        first = min(same)
        for path, manifest in sorted(same.items()):
            if _calls(manifest) != _calls(same[first]):
                yield f"{path.name} has other kernels than {first.name}: they are of different builds"
        labelled = [path for path in same if label_in(path.name)]
        yield from _index_problems(begin.with_name(index_name(begin.name)), labelled)


def _calls(manifest: Record) -> dict[str, list[str]]:
    """The kernels of a package, and their variants."""
    return {name: [v.text("slug") for v in kernel.records("variants")] for name, kernel in manifest.members("kernels")}


def _index_problems(index: Path, wheels: Sequence[Path]) -> Iterator[str]:
    """What the file beside some wheel variants says of them, if there is one."""
    try:
        expected = decoded(index_text({path.name: (label_in(path.name), properties_of(path)) for path in wheels}))
        if index.exists():
            said = decoded(read_record(index))
            labels = Record(said, "").record("variants").raw
            wrong = [name for name, needs in expected["variants"].items() if labels.get(name, ...) != needs]
            if wrong or {**said, "variants": {}} != {**expected, "variants": {}}:
                yield f"{index.name} does not say of {' and '.join(wrong) or 'providers'} what the wheels do: {AGAIN}"
    except KernelwrightError as error:
        yield error.message
    except (OSError, ValueError) as error:
        yield f"{index.name} cannot be read: {error}: {AGAIN}"


def _runs(archs: Mapping[str, int], capability: int) -> bool:
    return any(suitability(arch, capability) for arch in archs)


def _told(label: str) -> str:
    return f"the label {label}" if label else "no label"


def _words(needs: Mapping[str, Any]) -> str:
    """Properties as the standard writes them: ``nvidia :: sm_arch :: 90_real``."""
    if not needs:
        return "nothing"
    features = needs[NAMESPACE].items() if isinstance(needs.get(NAMESPACE), dict) else ()
    return " and ".join(f"{NAMESPACE} :: {name} :: {' or '.join(map(str, values))}" for name, values in features)


def _group_in(needs: Mapping[str, Any], manifest: Record) -> Group:
    """The group of GPUs that properties are about, among those that a build of the package has wheels for."""
    values = Record(dict(needs), "").record(NAMESPACE).texts(ARCH)
    archs = {image.arch for image in listed_images(manifest)}
    found = [group for group in groups_of(archs) if [group.value] == values]
    if not found:
        raise ValueError(f"it asks for {' or '.join(values) or 'nothing'}, and the package has no such wheel")
    return found[0]


def split_problems(document: Record, files: Mapping[str, bytes]) -> Iterator[str]:
    """A package without device code says where to get that of each arch, and has extras that do."""
    place = document.record("device_code")
    version, packages, wheels = place.text("version"), place.record("packages"), place.record("wheels")
    needs, extras = (fields(files, "METADATA", field) for field in ("Requires-Dist", "Provides-Extra"))
    for arch in sorted({image.arch for image in listed_images(document)}):
        extra = extra_of(arch)
        pin = f'{wheels.text(arch)}=={version}; extra == "{extra}"'
        if packages.text(arch) != provider_package(document.text("package"), arch):
            yield f"its manifest has the code for {arch} in {shown(packages.text(arch))}, which is no part of it"
        if extra not in extras or pin not in needs:
            yield f"it has no extra {extra} that installs {wheels.text(arch)}=={version}, which has its code for {arch}"
