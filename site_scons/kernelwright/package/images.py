"""The files of device code that a manifest lists, and which of them a wheel variant has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from ..core.records import Record
from .wheel_variants import Group, portable

IMAGES = "_images"
"""The folder of a package for its device code, if libraries do not hold it and it has no wheels of its own."""


@dataclass(frozen=True)
class Image:
    """A file with device code.

    Arguments:
        arch: what it is for.
        file: its name, relative to the folder that the images are in.
        sha256: its digest.
        size: its bytes.
    """

    arch: str
    file: str
    sha256: str
    size: int

    @property
    def path(self) -> str:
        """Where it is in a package that has it."""
        return f"{IMAGES}/{self.file}"


def listed_images(manifest: Record) -> Iterator[Image]:
    """The device code that a manifest lists, if libraries do not hold it."""
    for _, kernel in manifest.members("kernels"):
        for variant in kernel.records("variants"):
            yield from images_of(variant)


def images_of(variant: Record) -> Iterator[Image]:
    """The same of one variant of a kernel."""
    for unit in variant.records("units"):
        for arch, image in unit.members("images") if unit.has("images") else ():
            yield Image(arch, image.text("file"), image.text("sha256"), image.count("size"))


def label_of(manifest: Record) -> str:
    """The label of the wheel variant that a manifest is of; empty: it is of none."""
    place = manifest.record("device_code") if manifest.has("device_code") else None
    return place.text("label") if place and place.has("label") else ""


def archs_here(manifest: Record) -> set[str] | None:
    """The archs whose code is in a wheel variant; None: it is none, and has the code of all that its manifest lists."""
    if not label_of(manifest):
        return None
    files = manifest.record("files").raw
    kernels = [kernel for _, kernel in manifest.members("kernels")]
    units = [unit for kernel in kernels for variant in kernel.records("variants") for unit in variant.records("units")]
    # The libraries of sources with host code of their own have their device code in every wheel.
    own = [unit.texts("archs") for unit in units if unit.text("target") == "cuda" and not unit.has("images")]
    return {*chain(*own), *(image.arch for image in listed_images(manifest) if image.path in files)}


def kept_images(manifest: Record, group: Group | None) -> dict[str, Image]:
    """The images that the wheel for a group has, by their paths in the package.

    For each variant of a kernel it has what the GPUs of the group run best, so a call does there what it does with the
    images of all archs.

    Arguments:
        manifest: that of the package with all images, or of any of its wheel variants.
        group: None: the wheel for all other machines, which has PTX.
    """
    kept: dict[str, Image] = {}
    for _, kernel in manifest.members("kernels"):
        for variant in kernel.records("variants"):
            images = list(images_of(variant))
            archs = [image.arch for image in images]
            chosen = group.code(archs) if group else portable(archs)
            kept |= {image.path: image for image in images if image.arch in chosen}
    return kept
