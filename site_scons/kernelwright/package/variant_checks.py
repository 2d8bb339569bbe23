"""Checks a wheel variant: each machine that an installer gives it to runs what is in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.records import Record
from ..runtime.arch import suitability
from .described import described
from .drivers import least_drivers
from .images import IMAGES, kept_images, label_of, listed_images
from .wheel_variants import (
    ARCH,
    INFO_FILE,
    NAMESPACE,
    NULL,
    Group,
    dotted,
    groups_of,
    label_in,
    properties,
    read_variant,
)


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
    kept, listed = kept_images(manifest, group), {f"{IMAGES}/{image.file}" for image in listed_images(manifest)}
    here = listed & manifest.record("files").raw.keys()
    yield from (f"{path} is missing, which machines run that it is for" for path in sorted(kept.keys() - here))
    yield from (f"{path} is for other machines than those that it is for" for path in sorted(here - kept.keys()))


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
