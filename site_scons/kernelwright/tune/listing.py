"""``kernelwright tune --list``: which devices have tables for which kernels, and which of their rules are stale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import KernelwrightError
from ..define.tuning import TableFile, TunedConfig, kernel_of, read_table, same
from ..ondemand.options import Options
from ..ondemand.origin import job_of
from .candidates import digest_today

if TYPE_CHECKING:
    from ..define.space import Choice
    from ..ondemand.origin import Origin


def listed(root: Path, names: Sequence[str], origins: dict[str, Origin]) -> tuple[list[str], int]:
    """A line for each table, and one for each thing that is stale in it; and how many of the latter there are.

    Arguments:
        names: the tables.
        origins: the kernels of the project by name.
    """
    lines: list[str] = []
    stale = 0
    for name in names:
        try:
            table = read_table(root, name)
            problems = list(_stale(table, origins.get(table.kernel)))
            count, device = sum(len(config.rules) for config in table.configs), table.device
            lines.append(
                f"{table.kernel:24} {device.arch:12} {device.count:4} {device.name}: "
                f"{len(table.configs)} configs, {count} rules ({name})"
            )
        except KernelwrightError as error:
            lines.append(f"{kernel_of(name):24} {name}: is damaged")
            problems = [str(error)]
        stale += len(problems)
        lines += [f"  stale: {problem}" for problem in problems]
    return lines, stale


def _stale(table: TableFile, origin: Origin | None) -> Iterator[str]:
    """What in a table does not fit the definition any more."""
    if origin is None:
        yield f"{table.path}:1: there is no kernel {table.kernel}"
        return
    for config in table.configs:
        choice = next((each for each in origin.record.choices if same(each.config, config.config)), None)
        if choice is None:
            yield f"{table.path}:{config.line}: {dict(config.config)} is not declared any more"
            continue
        points = choice.points.get(table.device.target, ())
        for rule in config.rules:
            if not any(same(point, rule.tune) for point in points):
                yield f"{table.path}:{rule.line}: {dict(rule.tune)} is not in the space any more"
        yield from _stale_sources(table, config, choice, origin)


def _stale_sources(table: TableFile, config: TunedConfig, choice: Choice, origin: Origin) -> Iterator[str]:
    """The variants that were measured with another source than they have now."""
    target, arch = table.device.target, table.device.arch
    own = target == "llvm" or origin.record.options.per_arch
    archs = [arch] if own else list(origin.settings.archs_of("cuda")) or [arch]
    options = Options.read("tune", target=target, archs=archs, backend="tvm_ffi")
    points = choice.points.get(target, ())
    for source in config.sources:
        if not any(same(point, source.tune) for point in points):
            continue
        job = job_of(origin, choice.candidate(source.tune), options)
        if digest_today(job, target, origin) != source.digest:
            yield f"{table.path}:{config.line}: the source of {dict(source.tune)} has changed since it was measured"
