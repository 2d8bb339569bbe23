"""The installed distributions whose sources and headers a kernel is made of, and their licences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

from ..core.surroundings import distributions_of, installed_digest, installed_record

UNKNOWN = "NOASSERTION"

CLASSIFIERS = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: ISC License (ISCL)": "ISC",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "License :: Other/Proprietary License": "LicenseRef-Proprietary",
}
"""Classifiers that mean one licence -> its name in SPDX. That of BSD means several."""


@dataclass(frozen=True)
class Contained:
    """A distribution that a kernel has code of.

    Arguments:
        distribution: as pip names its folder.
        version: of it.
        license: an expression of SPDX, or ``NOASSERTION``.
        recorded: digest of what pip has recorded of it.
    """

    distribution: str
    version: str
    license: str
    recorded: str

    @property
    def shown(self) -> list[str]:
        """What the manifest says of it."""
        return [self.distribution, self.version, self.license]


def contained_in(folders: Iterable[Path]) -> tuple[Contained, ...]:
    """The distributions that have the files of some folders; those that pip has not installed are none.

    A folder belongs to the distribution of its first file: folders that several share are NVIDIA's, under one licence.
    """
    firsts = (next((str(path) for path in sorted(folder.rglob("*")) if path.is_file()), "") for folder in folders)
    owners = {owner for first in firsts if first for owner in distributions_of([first]) or ()}
    return tuple(_contained(owner) for owner in sorted(owners))


def _contained(distribution: str) -> Contained:
    record = installed_record(distribution)
    version = record.parent.stem.partition("-")[2] if record else ""
    license_ = license_in(record.with_name("METADATA")) if record else UNKNOWN
    return Contained(distribution, version, license_, installed_digest(distribution))


def license_in(metadata: Path) -> str:
    """The licence that METADATA names, as an expression of SPDX; ``NOASSERTION`` if it has none in that form."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    try:
        fields = message_from_bytes(metadata.read_bytes())
    except OSError:
        return UNKNOWN
    for text in (fields.get("License-Expression"), fields.get("License")):
        try:
            return canonicalize_license_expression(text or "")
        except InvalidLicenseExpression:
            continue
    named = {CLASSIFIERS[text] for text in fields.get_all("Classifier", []) if text in CLASSIFIERS}
    return named.pop() if len(named) == 1 else UNKNOWN
