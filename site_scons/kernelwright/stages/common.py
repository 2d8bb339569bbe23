"""Stages that kernels of a package have in common: the objects of their sources, and the libraries of these.

Whoever lists a source with equal options gets the same stage: the name of its first output has a digest of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..define.record import DefinitionRecord
    from .discovery import DefinitionRecords
    from .stage import Stage


class Readers:
    """The definition files whose kernels share a stage, each of which notes what the stage has read.

    So each of them is looked into again when one of these files has changed, whether or not the others are there.

    Arguments:
        records: where they note it.
        request: the stage's name in their records.
    """

    def __init__(self, records: DefinitionRecords, request: str) -> None:
        self._records, self._request = records, request
        self._definitions: dict[str, DefinitionRecord] = {}
        self._noted: dict[str, frozenset[str]] = {}

    def join(self, stage: Stage, definition: DefinitionRecord) -> None:
        """Add a definition file; one that does not know yet what the stage has read learns it now."""
        if definition.file in self._definitions:
            return
        known = definition.later.get(self._request, {})
        self._definitions[definition.file], self._noted[definition.file] = definition, frozenset(known)
        stage.later = stage.later or dict(known)
        if stage.later:
            self(stage.later)

    def __call__(self, dependencies: Mapping[str, str]) -> Mapping[str, str]:
        """Have all of them note files, name -> SHA-256; these files."""
        names = frozenset(dependencies)
        for file, definition in self._definitions.items():
            if self._noted[file] != names:
                self._records.remember(definition, self._request, dependencies, whole=True)
                self._noted[file] = names
        return dict(sorted(dependencies.items()))
