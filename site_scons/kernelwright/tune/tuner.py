"""Tunes one kernel on one device: builds the candidates, measures them, and decides which runs at which sizes."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

from ..core.errors import KernelwrightError, SettingsError, Where
from ..core.files import canonical_json
from ..define.debug import FULL
from ..define.divisible import rounded_up
from ..define.space import Choice, Point
from ..define.tuning import Evidence, TableDevice, TableFile, same
from ..ondemand.files import origin_in
from ..ondemand.options import OFF, Options
from ..ondemand.origin import Origin, job_of
from ..processes.protocol import CostRequest
from ..runtime.tables import Rules
from ..state.tuning_result import DEFAULT, FAILED, FOLDER
from .bench import Bench
from .candidates import Built, Candidate, Workshop
from .contest import Contest
from .decide import Sizes, choose, rules_of
from .device import Device, usable_cpus
from .kept import Entry, Kept, Key
from .policy import Policy
from .progress import Progress
from .sizes import combinations, size_text

BUILDING = 0.5
"""The part of the budget after which nothing more is built."""


MEASURING = 0.8
"""The part of the budget after which candidates are left out. The rest is for answers that would change."""

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
        any_kernel: whether a kernel without a space has one point for each of its configs, in place of an error.
    """

    path: Path
    kernel: str
    device: Device
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    budget_s: float | None = None
    anew: bool = False
    policy: Policy = field(default_factory=Policy)
    any_kernel: bool = False


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
        carried: what the table has for other sizes, with its candidates.
        rules: what follows from both, with numbers of candidates.
    """

    config: Mapping[str, Any]
    candidates: tuple[Candidate, ...]
    digests: Mapping[int, str]
    sizes: tuple[Mapping[str, int], ...]
    entries: tuple[Mapping[int, Entry], ...]
    failed: Mapping[int, str]
    answers: tuple[int, ...]
    carried: tuple[tuple[Evidence, int], ...]
    rules: Rules


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
        self.progress = progress
        self._start = time.monotonic()
        device = request.device
        self._options = Options.read("tune", target=device.target, backend="tvm_ffi")
        self.origin: Origin = origin_in(request.path, request.kernel, self._options)
        self.choices = [choice for choice in self.origin.record.choices if choice.points.get(device.target)]
        record = self.origin.record
        if request.any_kernel and not record.choices and device.target in (record.options.targets or ()):
            self.choices = [Choice(config, {device.target: ({},)}, record.sizes) for config in record.configs]
        if not self.choices:
            self._refuse()
        job = job_of(self.origin, self.choices[0].candidates(device.target)[0], self._options)
        if job.jit == OFF:  # what cannot be compiled would count as a candidate that failed
            where = Where(request.kernel, stage="tune", location=self.origin.record.location)
            message = "candidates have to be compiled, and compile on demand is off"
            raise SettingsError(message, where, "set KERNELWRIGHT_JIT=on for this command")
        if not request.any_kernel and (record.options.debug or self.origin.settings.debug) == FULL:
            message = "debug is 'full', and the times of code that is not optimised would decide"
            raise SettingsError(message, self.where, "tune it without debug")
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
        if of_language := job.tools.data_of_front_end(self.origin.record.options.frontend):
            identity.append(of_language)
        if (cpus := usable_cpus()) < device.count and device.target == "llvm":
            # Other CPUs, other times: these are kept apart from those that were measured with all of them.
            identity.append({"cpus": cpus})
            progress.note(f"this process may use {cpus} of {device.count} CPUs, and the table will say {device.count}")
        self._made_with = hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:16]

    def _refuse(self) -> None:
        record, target = self.origin.record, self.request.device.target
        what = f"no space for {target}" if record.choices else "no space: nothing about it can be tuned"
        raise SettingsError(f"{record.name} has {what}", self.where, "write @kernel(..., tune=grid(...))")

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

    def run(self, folder: Path, before: TableFile | None) -> list[Tuned]:
        """Tune all choices.

        Arguments:
            folder: where timings are kept.
            before: the present table.

        Raises:
            KernelwrightError: a default cannot be built or measured, or there are no sizes to measure.
        """
        self._start = time.monotonic()
        kept = Kept(folder, self.request.anew)
        bench = Bench(self.root, self.request.policy, self.origin.settings.environment)
        try:
            tuned = [ConfigTuning(self, number, bench, kept, before).run() for number in range(len(self.choices))]
        finally:
            bench.renew()
        if bench.disturbed and (part := mean(bench.disturbed)) > BUSY:
            self.progress.note(f"this machine is busy: {part:.0%} of the batches waited for a CPU, and do not count")
        return tuned

    def left_s(self, number: int, part: float = 1.0) -> float:
        """Seconds that there are for a choice, if those that are left are for all choices from it on."""
        if self.request.budget_s is None:
            return float("inf")
        left = part * self.request.budget_s - (time.monotonic() - self._start)
        return left / (len(self.choices) - number)


class ConfigTuning:
    """The tuning of one choice.

    Arguments:
        tuner: the kernel and the device.
        number: that of the choice.
        bench: measures.
        kept: the timings of earlier runs, and of this one.
        before: the present table.

    ``built`` has the candidates that are built, by number.
    """

    def __init__(self, tuner: Tuner, number: int, bench: Bench, kept: Kept, before: TableFile | None) -> None:
        self._tuner, self._number, self._bench, self._kept = tuner, number, bench, kept
        self._progress, self._policy, self._kernel = tuner.progress, tuner.request.policy, tuner.request.kernel
        self._choice = tuner.choices[number]
        self._candidates = tuner.candidates_of(self._choice)
        self._workshop = tuner.workshop()
        self._before, self._old = before, before.of(self._choice.config) if before else None
        self._contest = Contest(bench, self._policy, kept, self._key, self._out, self._progress.step)
        self.built: dict[int, Built] = {}
        self._failed: dict[int, str] = {}
        self._entries: list[tuple[Sizes, dict[int, Entry]]] = []
        self._unfit: list[Sizes] = []

    def run(self) -> Tuned:
        """See :meth:`Tuner.run`."""
        default = self._workshop.build(self._candidates[:1])[0]
        if isinstance(default, KernelwrightError):
            raise default
        self.built[DEFAULT] = default
        sizes = self._sizes(default)
        self._build(self._ordered(sizes))
        known = {number: self._kept.failure(self._key(number, {})) for number in self.built if number != DEFAULT}
        self._failed |= {number: why for number, why in known.items() if why}
        self.measure(sizes)
        return self._decided()

    def _key(self, number: int, sizes: Sizes) -> Key:
        return self._tuner.key(self.built[number], self.built[DEFAULT], sizes)

    def _out(self, number: int, error: KernelwrightError) -> None:
        self._failed[number] = str(error)
        self._workshop.out(self._candidates[number], error, self.built[number].sources)

    def _standing(self, sizes: Sizes) -> int:
        """What runs up to now: the answer of the present table, or else what the definition prefers for the arch."""
        preferred = self._choice.preferred.get(self._tuner.arch)
        return number_of(self._candidates, self._old.answer(sizes) if self._old else preferred)

    def _sizes(self, default: Built) -> list[dict[str, int]]:
        """The combinations of sizes that are measured; those of a class are rounded up to its multiples."""
        symbols, multiples = list(default.request.signature.symbols), self._multiples
        declared = self._choice.sizes
        given = self._tuner.request.sizes or {name: declared[name] for name in symbols if name in declared}

        def in_class(name: str) -> list[int]:
            # Two sizes may be one as a multiple.
            return list(dict.fromkeys(rounded_up(size, multiples.get(name, 1)) for size in given[name]))

        return combinations({name: in_class(name) for name in given}, symbols, self._tuner.where)

    @property
    def _multiples(self) -> Mapping[str, int]:
        return self.built[DEFAULT].request.signature.multiples

    def _ordered(self, sizes: Sequence[Sizes]) -> list[Candidate]:
        """All candidates but the default.

        Those come first that are the answer up to now: a budget must not leave them out. Then come those that the
        definition estimates to take least at the sizes in the middle.
        """
        rest, origin = list(self._candidates[1:]), self._tuner.origin
        if origin.record.has_cost and rest:
            configs, middle = [dict(each.config) for each in rest], sizes[len(sizes) // 2]
            target = self._tuner.request.device.target
            costs = self._bench.costs(CostRequest(origin.definition.file, self._kernel, configs, middle, target))
            rest = [each for _, each in sorted(zip(costs, rest, strict=True), key=lambda pair: pair[0])]
        stand = {self._standing(at) for at in (*sizes, *(row.sizes for row in self._evidence))}
        return sorted(rest, key=lambda each: each.number not in stand)

    @property
    def _evidence(self) -> tuple[Evidence, ...]:
        return self._old.evidence if self._old else ()

    def _build(self, candidates: Sequence[Candidate]) -> None:
        """Build those candidates that can be built in half of the time; those that are wrong are out."""
        is_limited, session = self._tuner.request.budget_s is not None, self._tuner.origin.session
        chunk = 4 * session.jobs if is_limited else len(candidates)
        for start in range(0, len(candidates), max(1, chunk)):
            if start and self._tuner.left_s(self._number, BUILDING) <= 0:
                self._progress.note(f"{len(candidates) - start} candidates are not built: half of the budget is over")
                break
            part = candidates[start : start + chunk]
            self._progress.begin(f"{self._kernel}: building {len(part)} candidates")
            for candidate, result in zip(part, self._workshop.build(part), strict=True):
                if isinstance(result, KernelwrightError):
                    self._failed[candidate.number] = str(result)
                else:
                    self.built[candidate.number] = result

    def measure(self, sizes: Sequence[Sizes]) -> None:
        """Find out about the candidates at each combination of sizes at which the default can be measured."""
        problem: KernelwrightError | None = None
        for place, at in enumerate(sizes):
            self._progress.begin(f"{self._kernel}: {size_text(at)} ({place + 1} of {len(sizes)})")
            able = {number: own for number, own in self.built.items() if number == DEFAULT or own.allows(at)}
            alive = {number: own for number, own in able.items() if number not in self._failed}
            left_s = self._tuner.left_s(self._number, MEASURING) / (len(sizes) - place)
            try:
                entries = self._contest.run(alive, at, left_s, self._standing(at))
                self._entries.append((at, entries))
                self._failed |= {n: one.failed for n, one in entries.items() if one.failed and n not in self._failed}
            except KernelwrightError as error:
                problem = error
                self._progress.note(f"{size_text(at)} is left out: the default cannot be measured: {error.message}")
        if not self._entries and problem is not None:
            raise problem

    def _decided(self) -> Tuned:
        """Decide; then see how answers do wherever the rules put them, and decide again if one of them fails."""
        tried: list[tuple[Sizes, int]] = []
        while True:
            answers = self.confirmed()
            sizes, carried = tuple(at for at, _ in self._entries), self._carried()
            measured = [*zip(sizes, answers, strict=True), *((row.sizes, number) for row, number in carried)]
            rules = rules_of(measured)
            missing = [one for one in self._missing(rules, measured) if one not in tried and one[0] not in self._unfit]
            if not missing:
                break
            self._try(*missing[0])
            tried.append(missing[0])
        self._tell_lost([at for at, _ in measured])
        digests = {number: own.digest for number, own in self.built.items()}
        entries = tuple(known for _, known in self._entries)
        about = (self._choice.config, self._candidates, digests, sizes, entries, self._failed)
        return Tuned(*about, answers, carried, rules)

    def confirmed(self) -> tuple[int, ...]:
        """The answers. One that is another one than up to now has to be better in a second process, too."""
        enough, given = self._policy.rounds + self._policy.confirm, set[tuple[int, int]]()
        while True:
            answers = tuple(self._answer(*one) for one in self._entries)
            doubtful: dict[int, list[int]] = {}
            for place, ((at, known), answer) in enumerate(zip(self._entries, answers, strict=True)):
                two = {answer, self._standing(at)} if answer != self._standing(at) else set()
                rest = [n for n in two & known.keys() - self._failed.keys() - {DEFAULT} if len(known[n].us) < enough]
                if numbers := [n for n in sorted(rest) if (place, n) not in given]:
                    doubtful[place] = numbers
            if not doubtful:
                return answers
            self._bench.renew()
            self._progress.begin(f"{self._kernel}: {len(doubtful)} new answers in another process")
            for place, numbers in doubtful.items():
                at, known = self._entries[place]
                self._contest.confirm(numbers, self.built, at, known)
                given |= {(place, number) for number in numbers}

    def _answer(self, sizes: Sizes, known: Mapping[int, Entry]) -> int:
        entries = ((n, entry) for n, entry in known.items() if n not in self._failed)
        return choose({n: entry for n, entry in entries if self._contest.is_complete(entry)}, self._standing(sizes))

    def _carried(self) -> tuple[tuple[Evidence, int], ...]:
        """What the table has for other sizes and would have again: sources, tools and policy are those of then."""
        if self._old is None or self._before is None or self._before.measured != self._tuner.measured:
            return ()
        then = [(source.tune, source.digest) for source in self._old.sources]
        known = [
            number
            for number, own in self.built.items()
            if number not in self._failed and any(same(t, own.candidate.tune) and d == own.digest for t, d in then)
        ]
        measured = [at for at, _ in self._entries]
        symbols = measured[0].keys()
        return tuple(
            (row, number)
            for row in self._evidence
            if row.sizes not in measured and row.sizes.keys() == symbols and DEFAULT in known
            for number in known
            if same(row.tune, self._candidates[number].tune)
        )

    def _tell_lost(self, kept: Sequence[Sizes]) -> None:
        lost = [size_text(row.sizes) for row in self._evidence if row.sizes not in kept]
        if lost:
            why = "its sources, tools or policy were other ones, so the new rules are without it; name all sizes"
            self._progress.note(f"{self._kernel}: the answer of the table for {'; '.join(lost)} is gone: {why}")

    def _missing(self, rules: Rules, measured: Sequence[tuple[Sizes, int]]) -> Iterator[tuple[Sizes, int]]:
        """Sizes at which a candidate is to run, and nobody knows yet whether it does.

        These are combinations whose product has the answer of others; and for each answer sizes that are larger by one
        than the smallest and the largest combination that it is for. A point that needs a size to be even, or at most
        so large, does not run there.
        """
        known = {canonical_json(at): numbers.keys() for at, numbers in self._entries}
        places: dict[int, list[Sizes]] = {}
        for at, answer in measured:
            number = rules.choose(at)
            places.setdefault(number, []).append(at)
            if number not in known.get(canonical_json(at), {answer}):
                yield at, number
        for number in places.keys() - {DEFAULT}:
            ordered = sorted(places[number], key=lambda at: math.prod(at.values()))
            for at in (ordered[0], ordered[-1]):
                yield {name: size + self._multiples.get(name, 1) for name, size in at.items()}, number

    def _try(self, sizes: Sizes, number: int) -> None:
        """One round of a candidate beside the default. Where that one fails, the candidate may fail, too.

        A candidate does not get sizes that it does not allow: a call with them runs the default.
        """
        if not self.built[number].allows(sizes):
            return
        contest = replace(self._contest, policy=replace(self._policy, rounds=1))
        try:
            contest.run({n: self.built[n] for n in (DEFAULT, number)}, sizes, float("inf"))
        except KernelwrightError:
            self._unfit.append(sizes)


def number_of(candidates: Sequence[Candidate], point: Point | None) -> int:
    """The number of the candidate with a point; that of the default if there is none."""
    numbers = (each.number for each in candidates if point is not None and same(each.tune, point))
    return next(numbers, DEFAULT)
