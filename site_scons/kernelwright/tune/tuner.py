"""Tunes one kernel on one device: builds the candidates, measures them, and decides which runs at which sizes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from ..core.errors import KernelwrightError, SettingsError, Where
from ..core.files import canonical_json
from ..define.divisible import rounded_up
from ..define.space import Point
from ..define.tuning import TableDevice, same
from ..ondemand.files import origin_in
from ..ondemand.options import Options
from ..ondemand.origin import job_of
from ..processes.protocol import CostRequest
from ..state.tuning_result import DEFAULT, FAILED, FOLDER
from .bench import Bench
from .candidates import Built, Candidate, Workshop
from .contest import Contest
from .decide import Range, choose, ranges_of
from .device import Device, usable_cpus
from .kept import Entry, Kept, Key
from .policy import Policy
from .progress import Progress
from .sizes import combinations, size_text

if TYPE_CHECKING:
    from ..define.space import Choice
    from ..ondemand.origin import Origin

Standing = Callable[[Mapping[str, Any], Mapping[str, int]], Point | None]

BUILDING = 0.5
"""The part of the budget after which nothing more is built."""


BUSY = 0.1
"""The part of batches that did not count from which on a run says so."""


@dataclass(frozen=True)
class Request:
    """What is to be tuned.

    Arguments:
        path: the definition file.
        kernel: its kernel.
        device: the device.
        sizes: the values of each symbol; empty: those of the definition.
        budget_s: seconds that it may take; None: as many as it needs.
        anew: whether kept timings do not count.
        policy: how is measured.
    """

    path: Path
    kernel: str
    device: Device
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    budget_s: float | None = None
    anew: bool = False
    policy: Policy = field(default_factory=Policy)


@dataclass(frozen=True)
class Tuned:
    """What came of one config.

    Arguments:
        config: the caller's.
        candidates: all of them, by number.
        digests: those of the sources of the candidates that were built.
        sizes: the combinations of sizes.
        entries: for each of them what is known of each candidate.
        failed: the candidates that are out, and why.
        answers: for each combination the candidate that is to run.
        by, ranges: the rules that follow from that.
    """

    config: Mapping[str, Any]
    candidates: tuple[Candidate, ...]
    digests: Mapping[int, str]
    sizes: tuple[Mapping[str, int], ...]
    entries: tuple[Mapping[int, Entry], ...]
    failed: Mapping[int, str]
    answers: tuple[int, ...]
    by: tuple[str, ...]
    ranges: tuple[Range, ...]


class Tuner:
    """Tunes one kernel on one device.

    Arguments:
        request: what.
        progress: shows how far it is.

    Raises:
        KernelwrightError: the definition file has an error, or the kernel has no space.
    """

    def __init__(self, request: Request, progress: Progress) -> None:
        self.request = request
        self._progress = progress
        self._start = time.monotonic()
        device = request.device
        self._options = Options.read("tune", target=device.target, backend="tvm_ffi")
        self.origin: Origin = origin_in(request.path, request.kernel, self._options)
        self.choices = [choice for choice in self.origin.record.choices if choice.points.get(device.target)]
        if not self.choices:
            self._refuse()
        job = job_of(self.origin, self.choices[0].candidates(device.target)[0], self._options)
        archs = job.selection.compiled or job.selection.archs[device.target]
        self.arch = device.arch(archs) if device.target == "cuda" else job.selection.archs["llvm"][0]
        tools = job.tools.data
        compiler = next(name for name in ("nvcc", "nvrtc", "host_compiler") if name in tools)
        self.measured = {
            "tvm": str(tools["tvm"]["tvm"]),
            "compiler": f"{compiler} {tools[compiler]['version']}".removeprefix("host_compiler "),
            "driver": device.driver or "none",
            "policy": request.policy.text,
        }
        identity = [vars(device) | {"spec": ""}, self.arch, self.measured, tools]
        if (cpus := usable_cpus()) < device.count and device.target == "llvm":
            # Other CPUs, other times: these are kept apart from those that were measured with all of them.
            identity.append({"cpus": cpus})
            progress.note(f"this process may use {cpus} of {device.count} CPUs, and the table will say {device.count}")
        self._made_with = hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:16]

    def _refuse(self) -> None:
        record, target = self.origin.record, self.request.device.target
        what = f"no space for {target}" if record.choices else "no space: nothing about it can be tuned"
        where = Where(record.name, stage="tune", location=record.location)
        raise SettingsError(f"{record.name} has {what}", where, "write @kernel(..., tune=grid(...))")

    @property
    def device(self) -> TableDevice:
        """The device as tables name it."""
        device = self.request.device
        return TableDevice(device.target, self.arch, device.name, device.count)

    @property
    def root(self) -> Path:
        """The project's folder."""
        return self.origin.session.root

    @property
    def where(self) -> Where:
        """The place for error messages."""
        return Where(self.origin.record.name, stage="tune", location=self.origin.record.location)

    def candidates_of(self, choice: Choice) -> tuple[Candidate, ...]:
        """The candidates of a choice, in the order of the space."""
        record, target = self.origin.record, self.request.device.target
        variants = [record.variant_of(config) for config in choice.candidates(target)]
        points = choice.points[target]
        numbered = enumerate(zip(points, variants, strict=True))
        return tuple(Candidate(number, point, variant.config, variant.slug) for number, (point, variant) in numbered)

    def workshop(self) -> Workshop:
        """What builds candidates."""
        device = self.request.device
        failed = self.root / FOLDER / self.request.kernel / FAILED
        return Workshop(self.origin, self._options, device.target, device.spec, failed)

    def key(self, built: Built, default: Built, sizes: Mapping[str, int]) -> Key:
        """What the timing of a candidate at some sizes is kept under."""
        return Key(built.candidate.config, built.digest, default.digest, sizes, self._made_with)

    def run(self, folder: Path, standing: Standing) -> list[Tuned]:
        """Tune all choices.

        Arguments:
            folder: where timings are kept.
            standing: gives for a config and sizes the point that the present table has; None: it has none.

        Raises:
            KernelwrightError: a default cannot be built or measured, or there are no sizes to measure.
        """
        self._start = time.monotonic()
        kept = Kept(folder, self.request.anew)
        bench = Bench(self.root, self.request.policy)
        with bench.open():
            tuned = [self._tune(number, bench, kept, standing) for number in range(len(self.choices))]
        if bench.disturbed and (part := mean(bench.disturbed)) > BUSY:
            self._progress.note(f"this machine is busy: {part:.0%} of the batches waited for a CPU, and do not count")
        return tuned

    def _left_s(self, number: int, part: float = 1.0) -> float:
        """Seconds that there are for a choice, if those that are left are for all choices from it on."""
        if self.request.budget_s is None:
            return float("inf")
        left = part * self.request.budget_s - (time.monotonic() - self._start)
        return left / (len(self.choices) - number)

    def _tune(self, number: int, bench: Bench, kept: Kept, standing: Standing) -> Tuned:
        choice = self.choices[number]
        candidates, failed = self.candidates_of(choice), dict[int, str]()
        workshop = self.workshop()
        default = workshop.build(candidates[:1])[0]
        if isinstance(default, KernelwrightError):
            raise default
        sizes = self._sizes(choice, default)
        stand = [number_of(candidates, standing(choice.config, at)) for at in sizes]
        # Those that stand come first: a budget must not leave out what is the answer up to now.
        ordered = sorted(self._ordered(candidates[1:], sizes, bench), key=lambda each: each.number not in stand)
        built = {DEFAULT: default} | self._build(workshop, ordered, number, failed)

        def out(candidate: int, error: KernelwrightError) -> None:
            failed[candidate] = str(error)
            workshop.out(candidates[candidate], error, built[candidate].sources)

        def key_of(candidate: int, at: Mapping[str, int]) -> Key:
            return self.key(built[candidate], default, at)

        contest = Contest(bench, self.request.policy, kept, key_of, out, self._progress.step)
        entries = self._measure(contest, built, list(zip(sizes, stand, strict=True)), number, failed)
        for each in (own.candidate for n, own in built.items() if n not in failed):
            workshop.well(each)
        return self._decided(choice, candidates, built, entries, failed, standing)

    def _sizes(self, choice: Choice, default: Built) -> list[dict[str, int]]:
        """The combinations of sizes that are measured; those of a class are rounded up to its multiples."""
        signature = default.request.signature
        symbols, multiples = list(signature["symbols"]), signature.get("multiples", {})
        given = self.request.sizes or {name: choice.sizes[name] for name in symbols if name in choice.sizes}

        def in_class(name: str) -> list[int]:
            # Two sizes may be one as a multiple.
            return list(dict.fromkeys(rounded_up(size, multiples.get(name, 1)) for size in given[name]))

        return combinations({name: in_class(name) for name in given}, symbols, self.where)

    def _ordered(
        self, candidates: Sequence[Candidate], sizes: Sequence[Mapping[str, int]], bench: Bench
    ) -> list[Candidate]:
        """The candidates, those first that the definition estimates to take least at the sizes in the middle."""
        if not self.origin.record.has_cost or not candidates:
            return list(candidates)
        file, target = self.origin.definition.file, self.request.device.target
        configs, middle = [dict(each.config) for each in candidates], sizes[len(sizes) // 2]
        costs = bench.costs(CostRequest(file, self.request.kernel, configs, middle, target))
        return [each for _, each in sorted(zip(costs, candidates, strict=True), key=lambda pair: pair[0])]

    def _build(
        self, workshop: Workshop, candidates: Sequence[Candidate], number: int, failed: dict[int, str]
    ) -> dict[int, Built]:
        """Those candidates that can be built in half of the time, and are right."""
        built: dict[int, Built] = {}
        chunk = len(candidates) if self.request.budget_s is None else 4 * self.origin.session.jobs
        for start in range(0, len(candidates), max(1, chunk)):
            if start and self._left_s(number, BUILDING) <= 0:
                self._progress.note(f"{len(candidates) - start} candidates are not built: half of the budget is over")
                break
            part = candidates[start : start + chunk]
            self._progress.begin(f"{self.request.kernel}: building {len(part)} candidates")
            for candidate, result in zip(part, workshop.build(part), strict=True):
                if isinstance(result, KernelwrightError):
                    failed[candidate.number] = str(result)
                else:
                    built[candidate.number] = result
        return built

    def _measure(
        self,
        contest: Contest,
        built: dict[int, Built],
        sizes: Sequence[tuple[Mapping[str, int], int]],
        number: int,
        failed: dict[int, str],
    ) -> list[tuple[Mapping[str, int], dict[int, Entry]]]:
        """What is known of the candidates at each combination of sizes at which the default can be measured.

        Arguments:
            sizes: each combination with the candidate that is the answer up to now.
        """
        found: list[tuple[Mapping[str, int], dict[int, Entry]]] = []
        problem: KernelwrightError | None = None
        for place, (at, standing) in enumerate(sizes):
            self._progress.begin(f"{self.request.kernel}: {size_text(at)} ({place + 1} of {len(sizes)})")
            alive = {candidate: own for candidate, own in built.items() if candidate not in failed}
            try:
                entries = contest.run(alive, at, self._left_s(number) / (len(sizes) - place), standing)
            except KernelwrightError as error:
                problem = error
                self._progress.note(f"{size_text(at)} is left out: the default cannot be measured: {error.message}")
                continue
            failed.update({n: entry.failed for n, entry in entries.items() if entry.failed and n not in failed})
            found.append((at, entries))
        if not found and problem is not None:
            raise problem
        return found

    def _decided(
        self,
        choice: Choice,
        candidates: tuple[Candidate, ...],
        built: Mapping[int, Built],
        entries: Sequence[tuple[Mapping[str, int], dict[int, Entry]]],
        failed: Mapping[int, str],
        standing: Standing,
    ) -> Tuned:
        answers = []
        for at, known in entries:
            complete = {n: entry.timing for n, entry in known.items() if n not in failed and self._is_complete(entry)}
            answers.append(choose(complete, number_of(candidates, standing(choice.config, at))))
        by, ranges = ranges_of([(at, answer) for (at, _), answer in zip(entries, answers, strict=True)])
        digests = {number: own.digest for number, own in built.items()}
        sizes = tuple(at for at, _ in entries)
        found = tuple(known for _, known in entries)
        return Tuned(choice.config, candidates, digests, sizes, found, failed, tuple(answers), by, ranges)

    def _is_complete(self, entry: Entry) -> bool:
        return not entry.failed and len(entry.us) >= self.request.policy.rounds


def number_of(candidates: Sequence[Candidate], point: Point | None) -> int:
    """The number of the candidate with a point; that of the default if there is none."""
    found = (each.number for each in candidates if point is not None and same(each.tune, point))
    return next(found, DEFAULT)
