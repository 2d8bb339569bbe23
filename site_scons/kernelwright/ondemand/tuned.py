"""Which variant of a kernel with a space runs an eager call: the project's tuning tables say so, as in a package."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..discover.tables import tables_in
from ..discover.tuned import choose, note_of, read_tables
from ..runtime.arch import suitable
from ..runtime.tables import Tuned, table_for
from .machine import cpu_identity, gpu_identity
from .origin import selected

if TYPE_CHECKING:
    from .options import Options
    from .origin import Origin


def table_files(origin: Origin) -> tuple[str, ...]:
    """What says which candidates of a kernel with a space run, relative to the project: the tables, and their folder,
    which changes when there are new ones."""
    folder = origin.settings.tuning
    return (folder, *tables_in(origin.session.root, folder).get(origin.record.name, ())) if folder else ()


class TunedVariants:
    """The variants of a kernel with a space that a package would have, and which of them runs a call.

    Arguments:
        origin: what is known of the definition.
        options: those of ``using``.
        with_tables: whether the project's tables count: for a kernel that is in one of its files.

    Raises:
        TuningError: a table is damaged.
        KernelwrightError: the settings, the kernel and the machine do not fit each other.
    """

    def __init__(self, origin: Origin, options: Options, with_tables: bool) -> None:
        names = table_files(origin)[1:] if with_tables else ()
        selection = selected(origin, origin.record, options)
        chosen = choose(selection, read_tables(origin.session.root, names).tables, origin.record)
        for stale in chosen.stale:
            sys.stderr.write(f"{note_of(stale)}\n")
        self._selection = chosen.selection

    @property
    def target(self) -> str:
        """The first target that is compiled for."""
        return next(iter(self._selection.archs))

    def declared(self, target: str) -> list[tuple[int, Mapping[str, Any]]]:
        """Number and config of each variant that a call is compared with."""
        selection, record = self._selection, self._selection.record
        listed = list(zip(record.configs, record.slugs, strict=True))[: selection.declared]
        return [
            (number, config)
            for number, (config, slug) in enumerate(listed)
            if target in selection.only.get(slug, {}) and target not in selection.tabled.get(slug, ())
        ]

    def replacement(self, declared: int, symbols: Mapping[str, Any], device: str) -> Mapping[str, Any] | None:
        """The config that runs in place of a declared one; None: that one runs.

        Arguments:
            declared: its number.
            symbols: the sizes of the call.
            device: such as ``cpu`` or ``cuda:1``.
        """
        tuned = self._tuned(declared, device)
        rules = tuned.rules() if tuned else None
        number = rules.choose(symbols) if rules else declared
        return None if number == declared else self._selection.record.configs[number]

    def _tuned(self, declared: int, device: str) -> Tuned | None:
        kind, _, number = device.partition(":")
        target = "cuda" if kind == "cuda" else "llvm"
        archs: Sequence[str] = self._selection.archs.get(target, ())
        if not self._selection.tables or not archs:
            return None
        if target == "llvm":
            (name, count), arch = cpu_identity(), archs[0]
        else:
            name, count, capability = gpu_identity(int(number or 0))
            arch = next(iter(suitable(archs, capability)), "")
        return Tuned(declared, arch, name, count, table_for(self._selection.tables, target, arch, name, count))
