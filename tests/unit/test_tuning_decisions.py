"""What a tuner decides from timings, with made-up numbers: answers, ranges, who is measured how often, what is kept."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelwright.core.errors import CheckError, KernelwrightError, SettingsError, Where
from kernelwright.core.signature import UNKNOWN, Argument
from kernelwright.define.kernel_options import KernelOptions
from kernelwright.define.space import Choice
from kernelwright.define.tuning import Evidence, Rule, Source, TableDevice, TableFile, TunedConfig
from kernelwright.ondemand.options import Options
from kernelwright.runtime.tables import Rules
from kernelwright.state.tuning_result import DEFAULT
from kernelwright.tune import tuner
from kernelwright.tune.bench import Turn
from kernelwright.tune.candidates import Built, Candidate, Workshop, digest_of
from kernelwright.tune.command import place_of, result_lines
from kernelwright.tune.contest import Contest
from kernelwright.tune.decide import Timing, choose, rules_of
from kernelwright.tune.device import Device, device_of, usable_cpus
from kernelwright.tune.kept import FILE, Entry, Kept, Key
from kernelwright.tune.policy import Policy
from kernelwright.tune.progress import Progress
from kernelwright.tune.sizes import combinations, read_seconds, read_sizes
from kernelwright.tune.tuner import ConfigTuning, Tuned

WHERE = Where("gemm", stage="tune")
ONE = Timing((10.0,) * 3, (10.0,) * 3)


def timing(*ratios: float) -> Timing:
    """A timing whose default took 10 us in each round."""
    return Timing(tuple(10 * ratio for ratio in ratios), (10.0,) * len(ratios))


# One combination of sizes.


EQUAL = {1: timing(0.81, 0.8, 0.82), 2: timing(0.8, 0.79, 0.81)}
STANDS = {1: timing(0.82, 0.8, 0.81), 2: timing(0.79, 0.8, 0.8)}


@pytest.mark.parametrize(
    ("timings", "standing", "answer"),
    [
        pytest.param({1: timing(0.97, 0.96, 0.97)}, DEFAULT, 1, id="three per cent faster"),
        pytest.param({1: timing(0.98, 0.98, 0.98)}, DEFAULT, DEFAULT, id="two per cent faster"),
        pytest.param({1: timing(0.5, 0.5, 1.01)}, DEFAULT, DEFAULT, id="slower in one round"),
        pytest.param({1: Timing((8, 80, 8), (10, 100, 10))}, DEFAULT, 1, id="a slow minute hits both"),
        pytest.param({1: Timing((8, 80, 800), (10, 80, 1000))}, DEFAULT, DEFAULT, id="equal in one round"),
        pytest.param(EQUAL, DEFAULT, 1, id="of equal ones the simpler one"),
        pytest.param(EQUAL | {1: timing(0.9, 0.9, 0.9)}, DEFAULT, 2, id="the faster one"),
        pytest.param(STANDS, 2, 2, id="what stands stays beside its equal"),
        pytest.param(STANDS, 1, 1, id="and so does the other one"),
        pytest.param({**STANDS, 3: timing(0.7, 0.71, 0.72)}, 2, 3, id="what stands is beaten"),
        pytest.param({1: timing(1.2, 1.2, 1.3)}, 1, DEFAULT, id="what stands has become slower"),
        pytest.param({1: timing(1.01, 1.0, 0.99)}, 1, 1, id="what stands is as fast as the default"),
        pytest.param({2: timing(0.99, 0.99, 0.99)}, 1, DEFAULT, id="what stands has no timing"),
    ],
)
def test_the_answer_at_some_sizes(timings: dict[int, Timing], standing: int, answer: int):
    assert choose({0: ONE, **timings}, standing) == answer


def test_what_was_disturbed_changes_no_answer():
    fast, slow = (0.5,) * 4, (1.5,) * 4
    once, twice = (True, False, False, False), (True, True, False, False)
    assert choose({0: ONE, 1: Timing(fast, (1.0,) * 4, noisy=once)}) == 1
    assert choose({0: ONE, 1: Timing(fast, (1.0,) * 4, noisy=twice)}) == DEFAULT
    assert choose({0: ONE, 1: Timing(slow, (1.0,) * 4, noisy=once)}, standing=1) == DEFAULT
    assert choose({0: ONE, 1: Timing(slow, (1.0,) * 4, noisy=twice)}, standing=1) == 1
    assert choose({0: ONE, 1: Timing((9.0, 0.5, 0.5, 0.5), (1.0,) * 4, noisy=once)}) == 1


# Ranges of sizes.


SQUARE = [{"m": m, "k": k, "n": 8} for m in (1, 10, 100) for k in (1, 10, 100)]


@pytest.mark.parametrize(
    ("answers", "rules"),
    [
        (
            [({"m": m}, answer) for m, answer in ((1, 0), (16, 0), (64, 2), (256, 2), (1024, 0))],
            Rules(("m",), ((32, 0), (512, 2), (None, 0))),
        ),
        ([({"m": m}, 3) for m in (1, 16)], Rules((), ((None, 3),))),
        ([({}, 1)], Rules((), ((None, 1),))),
        ([({"m": m, "k": k}, int(k > 10)) for m in (1, 100) for k in (4, 400)], Rules(("k",), ((40, 0), (None, 1)))),
        ([(at, int(at["m"] * at["k"] >= 100)) for at in SQUARE], Rules(("m", "k"), ((31, 0), (None, 1)))),
        (
            [(at, int(at["m"] * at["k"] >= 100 and at["m"] < 100)) for at in SQUARE],
            Rules(("m", "k"), ((31, 0), (316, 1), (None, 0))),
        ),
    ],
    ids=[
        *("neighbours merge, and borders are geometric means", "one answer", "no size", "one symbol explains all"),
        *("a product explains all", "of equal products most win"),
    ],
)
def test_answers_become_ranges_of_sizes(answers: list[tuple[dict[str, int], int]], rules: Rules):
    assert rules_of(answers) == rules


@pytest.mark.parametrize(("low", "high"), [(1, 2), (7, 8), (1000, 1001)])
def test_a_border_belongs_to_the_lower_size_and_not_to_the_higher_one(low: int, high: int):
    ((upto, _), _) = rules_of([({"m": low}, 0), ({"m": high}, 1)]).ranges
    assert low <= (upto or 0) < high


# Sizes and times as users write them.


def test_sizes_are_lists_powers_or_steps():
    assert read_sizes(["m=1,64,16"]) == {"m": (1, 16, 64)}
    assert read_sizes(["m=1:8192:x2"])["m"] == tuple(2**power for power in range(14))
    assert read_sizes(["m=1:100:+10", "k=3"]) == {"m": tuple(range(1, 100, 10)), "k": (3,)}
    assert read_sizes(["m=5:20:x3"]) == {"m": (5, 15)}


@pytest.mark.parametrize(
    "text", ["m", "m=", "=1", "m=0", "m=1:2", "m=1:8:x1", "m=1:8:+0", "m=9:8:x2", "m=1:99999:+1", "m=1.5", "m-=1"]
)
def test_other_sizes_are_refused_with_what_to_write(text: str):
    with pytest.raises(SettingsError, match="m=1:8192:x2"):
        read_sizes([text])
    with pytest.raises(SettingsError):
        read_sizes(["m=1", "m=2"])


def test_all_combinations_are_measured_and_each_symbol_has_to_be_given():
    assert combinations({"n": [1, 2], "m": [3]}, ["m", "n"], WHERE) == [{"m": 3, "n": 1}, {"m": 3, "n": 2}]
    assert combinations({}, [], WHERE) == [{}]
    with pytest.raises(SettingsError, match="nothing says which n to measure; its sizes are m, n"):
        combinations({"m": [1]}, ["m", "n"], WHERE)
    with pytest.raises(SettingsError, match="it has no size 'q'"):
        combinations({"m": [1], "q": [1]}, ["m"], WHERE)
    with pytest.raises(SettingsError, match="all its sizes are fixed"):
        combinations({"m": [1]}, [], WHERE)


def test_a_budget_is_a_time():
    assert [read_seconds(text) for text in ("90s", "10m", "1.5h")] == [90, 600, 5400]
    for text in ("", "10", "m", "0s", "1d", "-1m"):
        with pytest.raises(SettingsError, match="write 90s"):
            read_seconds(text)


# Turns.


Times = Mapping[int, float | KernelwrightError]


class MadeUp:
    """A bench whose times are made up: candidate -> microseconds or an error; ``later`` is for the second process."""

    def __init__(self, times: Times, later: Times | None = None) -> None:
        self._times, self._later = times, later or {}
        self.seconds = [1.0]
        self.turns: list[int] = []
        self.disturbed: set[int] = set()  # the turns that are noisy, by their numbers

    def renew(self) -> None:
        self._times = self._later

    def turn(self, built: Any, sizes: Mapping[str, int]) -> Turn:
        number = built.candidate.number
        self.turns.append(number)
        time = self._times[number]
        if isinstance(time, KernelwrightError):
            raise time
        return Turn(time, 0.0, 1500 + number, len(self.turns) in self.disturbed)


def compete(
    bench: MadeUp,
    kept: Kept | Path,
    count: int,
    left_s: float = math.inf,
    *,
    m: int = 1,
    standing: int = DEFAULT,
    **policy: int,
) -> tuple[dict[int, Entry], list[int]]:
    """The timings of so many candidates at a size, and those that are out."""

    def key_of(number: int, sizes: Mapping[str, int]) -> Key:
        return Key({"block": number}, f"digest {number}", "digest 0", sizes, "tools")

    made: Any = bench
    out: list[int] = []
    kept = kept if isinstance(kept, Kept) else Kept(kept)
    rules = Policy(**{"rounds": 3, **policy})
    made = Contest(made, rules, kept, key_of, lambda number, _: out.append(number), lambda turns: None)
    return made.run(built(*range(count)), {"m": m}, left_s, standing), out


def built(*numbers: int, requires: str = "m <= 4") -> dict[int, Any]:
    """Candidates; the first and the second one have a requirement."""
    made, x = {}, Argument("x", "tensor", "float32", output=False, written=False, shape=("m",))
    for number in numbers:
        signature = replace(UNKNOWN, arguments=(x,), requires=(requires,) if number < 2 else ())
        request: Any = SimpleNamespace(signature=signature)
        made[number] = Built(Candidate(number, {}, {}, f"block-{number}"), request, Path(), "")
    return made


def test_candidates_have_their_turns_in_rounds_beside_the_default(tmp_path: Path):
    bench = MadeUp({0: 10, 1: 9, 2: 8})
    bench.disturbed = {1, 6}  # the default in the first round, candidate 2 in the second one
    found, _ = compete(bench, tmp_path, 3)
    assert bench.turns == [0, 1, 2] * 3
    noisy = (True, False, False)
    assert found[1] == Entry((9,) * 3, (10,) * 3, noisy=noisy, clock_mhz=(1501, 1501)) and found[0].us == (10,) * 3
    assert found[2].noisy == (True, True, False), "a round is noisy if a turn of it was, be it that of the default"


def test_large_groups_are_parted_and_each_has_the_default_beside_it(tmp_path: Path):
    bench = MadeUp(dict.fromkeys(range(4), 10))
    compete(bench, tmp_path, 4, rounds=2, group=2)
    assert bench.turns == [0, 1, 2, 0, 1, 2, 0, 3, 0, 3]


def test_the_answer_that_stands_is_measured_to_the_end_within_any_budget(tmp_path: Path):
    bench = MadeUp({0: 10, 1: 7, 2: 8, 3: 9})
    found, _ = compete(bench, tmp_path, 4, 0.0, standing=3)
    assert bench.turns == [0, 3] * 3 and choose(found, 3) == 3
    bench.turns.clear()
    found, _ = compete(bench, tmp_path, 4, 5.0, m=2, standing=3)
    assert bench.turns[:4] == [0, 3, 1, 2] and len(found[3].us) == 3 and len(found[2].us) == 1


def test_timings_that_cannot_be_do_not_count_and_a_check_keeps_none(tmp_path: Path):
    key = Key({"block": 1}, "digest 1", "digest 0", {"m": 1}, "tools")
    Kept(tmp_path, writes=False).put(key, Entry((1.0,), (2.0,)))
    assert not (tmp_path / FILE).exists()
    for us in (0.0, -1.0, math.nan, math.inf):
        Kept(tmp_path).put(key, Entry((1.0,), (us,)))
        assert Kept(tmp_path).get(key) is None


def test_fewer_cpus_than_the_machine_has_are_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 5})
    found = [usable_cpus({"KERNELWRIGHT_NUM_THREADS": text}) for text in ("", "3", "9", "0", "many")]
    assert found == [4, 3, 4, 4, 4] and usable_cpus({}) == 4


def test_what_fails_because_the_run_ends_leaves_no_log(tmp_path: Path):
    origin: Any = SimpleNamespace(session=SimpleNamespace(ending=True))
    shop, slow = Workshop(origin, Options(), "llvm", "cpu", tmp_path), Candidate(1, {}, {}, "slow")
    shop.out(slow, CheckError("the build is ending"), tmp_path / "sources")
    assert not list(tmp_path.iterdir())
    origin.session.ending = False
    shop.out(slow, CheckError("it is wrong"), tmp_path / "sources")
    assert (tmp_path / "slow/log.txt").read_text() == "it is wrong\n"


def test_a_candidate_that_fails_is_out_one_that_is_far_slower_has_one_turn_and_the_others_go_on(tmp_path: Path):
    bench = MadeUp({0: 10, 1: CheckError("wrong"), 2: 9, 3: 21})
    found, out = compete(bench, tmp_path, 4)
    assert out == [1] and found[1].failed == "wrong" and bench.turns == [0, 1, 2, 3, 0, 2, 0, 2]
    assert len(found[3].us) == 1
    with pytest.raises(CheckError):
        compete(MadeUp({0: CheckError("no"), 1: 9}), tmp_path, 2, m=2)


def test_what_was_measured_is_not_measured_again_and_a_new_candidate_has_the_default_beside_it(tmp_path: Path):
    first = compete(MadeUp({0: 10, 1: 9, 2: 30}), tmp_path, 3, rounds=2)
    again = MadeUp({})
    assert compete(again, tmp_path, 3, rounds=2) == first and again.turns == []
    more = MadeUp({0: 11, 3: 8})
    assert compete(more, tmp_path, 4, rounds=2)[0][1] == first[0][1] and more.turns == [0, 3, 0, 3]
    for kept, m in ((Kept(tmp_path), 2), (Kept(tmp_path, anew=True), 1)):
        bench = MadeUp({0: 11, 1: 8})
        compete(bench, kept, 2, m=m, rounds=2)
        assert bench.turns == [0, 1, 0, 1]


def test_if_there_is_no_time_for_all_the_slower_half_is_left_out_after_each_round(tmp_path: Path):
    bench = MadeUp({number: 10 + 0.1 * number for number in range(9)})
    found, _ = compete(bench, tmp_path, 9, 10.0, rounds=4)  # there is time for some nine turns
    rounds = {number: len(entry.us) for number, entry in found.items() if number}
    assert rounds == {1: 4, 2: 4, 3: 2, 4: 2, 5: 1, 6: 1, 7: 1, 8: 1}
    assert set(compete(bench, tmp_path, 9, 4.0, m=2, rounds=4)[0]) == {0, 1, 2, 3}, "the others have no turn at all"


# Answers that change.


def answers_of(
    bench: MadeUp, folder: Path, number: int, standing: int = DEFAULT, m: int = 1, **prefers: int
) -> tuple[int, ...]:
    """What comes of that many candidates in two rounds, and two more in a second process.

    ``standing`` is the answer of the table; without one, ``prefers`` says what the definition prefers for archs.
    """
    rules = TunedConfig({}, (), (Rule({"block": standing}),))
    table = TableFile("gemm", TableDevice("llvm", "a", "b", 2), {}, (rules,))
    return tuning_of(bench, folder, number, None if prefers else table, m, **prefers).confirmed()


def tuning_of(
    bench: MadeUp, folder: Path, number: int, table: TableFile | None, m: int = 1, **prefers: int
) -> ConfigTuning:
    """The tuning of that many candidates, which are measured in two rounds at one combination of sizes."""
    preferred = {arch: {"block": one} for arch, one in prefers.items()}
    candidates = tuple(Candidate(n, {"block": n}, {"block": n}, f"block-{n}") for n in range(number))
    tuner: Any = SimpleNamespace(
        progress=Progress(),
        request=SimpleNamespace(policy=Policy(rounds=2, confirm=2), kernel="gemm"),
        choices=[Choice({}, {}, preferred=preferred)],
        arch="sm_90a",
        measured={"nvcc": "13.0"},
        candidates_of=lambda choice: candidates,
        workshop=lambda: None,
        left_s=lambda choice, part: math.inf,
        key=lambda own, default, sizes: Key({"block": own.candidate.number}, "d", "e", sizes, "tools"),
    )
    made: Any = bench
    tuning = ConfigTuning(tuner, 0, made, Kept(folder), table)
    tuning.built.update(built(*range(number)))
    tuning.measure([{"m": m, "n": 1}])
    return tuning


def test_an_answer_changes_only_if_it_is_better_in_a_second_process_too(tmp_path: Path):
    bench = MadeUp({0: 10, 1: 8, 2: 9.9}, later={0: 10, 1: 8})
    assert answers_of(bench, tmp_path / "a", 3) == (1,) and bench.turns == [0, 1, 2, 0, 1, 2, 0, 1, 0, 1]
    bench = MadeUp({0: 10, 1: 8, 2: 9.9}, later={0: 10, 1: 10.1})
    assert answers_of(bench, tmp_path / "b", 3) == (0,)
    # The second best is next.
    bench = MadeUp({0: 10, 1: 8, 2: 9}, later={0: 10, 1: 10.1, 2: 9})
    assert answers_of(bench, tmp_path / "c", 3) == (2,) and bench.turns[6:] == [0, 1, 0, 1, 0, 2, 0, 2]


def test_an_answer_that_stands_and_the_one_that_would_follow_it_are_measured_side_by_side(tmp_path: Path):
    bench = MadeUp({0: 10, 1: 8, 2: 9}, later={0: 10, 1: 9, 2: 9})
    assert answers_of(bench, tmp_path / "a", 3, standing=2) == (2,) and bench.turns[6:] == [0, 1, 2, 0, 1, 2]
    bench = MadeUp({0: 10, 1: 8, 2: 9}, later={0: 10, 1: 8, 2: 9})
    assert answers_of(bench, tmp_path / "b", 3, standing=2) == (1,)
    again = MadeUp({})
    assert answers_of(again, tmp_path / "b", 3, standing=2) == (1,) and again.turns == []
    # Where nothing would change nothing is measured again, and where the default would follow only what stands is.
    bench = MadeUp({0: 10, 1: 8, 2: 8})
    assert answers_of(bench, tmp_path / "c", 3, standing=2) == (2,) and len(bench.turns) == 6
    bench = MadeUp({0: 10, 1: 11}, later={0: 10, 1: 9})
    assert answers_of(bench, tmp_path / "d", 2, standing=1) == (1,) and bench.turns[4:] == [0, 1, 0, 1]


@pytest.mark.parametrize(("nvcc", "sizes"), [("13.0", [{"m": 3, "n": 1}]), ("12.9", [])])
def test_answers_for_other_sizes_stay_in_the_table_if_they_are_of_the_same_tools(tmp_path: Path, nvcc: str, sizes: Any):
    row = Evidence({"m": 3, "n": 1}, {"block": 0}, 9.0, 9.0, 0.0)
    config = TunedConfig({}, (), (Rule({"block": 0}),), (row,), (Source({"block": 0}, ""),))
    table = TableFile("gemm", TableDevice("llvm", "a", "b", 2), {"nvcc": nvcc}, (config,))
    tuning = tuning_of(MadeUp({0: 10}), tmp_path, 1, table)
    tuning.built[0] = replace(tuning.built[0], candidate=Candidate(0, {"block": 0}, {}, "block-0"))
    assert [row.sizes for row, _ in tuning._carried()] == sizes


def test_without_a_table_what_the_definition_prefers_for_the_arch_stands(tmp_path: Path):
    times: Times = {0: 10, 1: 8, 2: 8.1}
    assert answers_of(MadeUp(times), tmp_path / "a", 3, sm_90a=2) == (2,)
    assert answers_of(MadeUp(times, times), tmp_path / "b", 3, sm_80=2) == (1,)


def test_a_candidate_is_not_measured_at_sizes_that_it_does_not_allow(tmp_path: Path):
    bench = MadeUp({0: 10, 1: 1, 2: 9.9})
    assert answers_of(bench, tmp_path, 3, m=5) == (0,)
    assert bench.turns == [0, 2, 0, 2], "the default is asked for all, and says what is wrong"


# What is kept.


def key(**fields: Any) -> Key:
    return Key(**{"config": {"m": 1}, "digest": "d", "default": "e", "sizes": {"n": 1}, "made_with": "w"} | fields)


def test_lines_that_are_damaged_are_none_and_of_two_the_later_one_counts(tmp_path: Path):
    kept = Kept(tmp_path)
    kept.put(key(), Entry((1.5,), (2.0,)))
    with (tmp_path / FILE).open("a") as stream:
        stream.write('\nnull\n[]\n{}\n{"us": [1]}\n\0\n{"config": 1, "digest": "d", "default": "e", "sizes": 3}\n')
        stream.write('{"config": {"m": 1}, "dig')
    Kept(tmp_path).put(key(digest="other"), Entry((3.0,), (2.0,)))
    again = Kept(tmp_path)
    assert again.get(key()) == Entry((1.5,), (2.0,)) and again.get(key(digest="other")) == Entry((3.0,), (2.0,))
    again.put(key(), Entry(failed="it hangs"))
    assert Kept(tmp_path).get(key()) == Entry(failed="it hangs")


def test_a_failure_at_any_sizes_is_one_unless_a_later_line_says_otherwise(tmp_path: Path):
    kept = Kept(tmp_path)
    kept.put(key(sizes={"n": 1}), Entry(failed="it hangs"))
    kept.put(key(sizes={"n": 2}), Entry((1.0,), (1.0,)))
    again = Kept(tmp_path)
    assert again.failure(key(sizes={})) == "it hangs" and again.failure(key(digest="x")) == ""
    again.put(key(sizes={"n": 1}), Entry((1.0,), (1.0,)))
    assert Kept(tmp_path).failure(key()) == ""


@pytest.mark.parametrize(
    "other", [{"config": {"m": 2}}, {"digest": "x"}, {"default": "x"}, {"sizes": {"n": 2}}, {"made_with": "x"}]
)
def test_a_timing_is_for_all_that_it_depends_on(tmp_path: Path, other: dict[str, Any]):
    kept = Kept(tmp_path)
    kept.put(key(), Entry((1.0,), (1.0,)))
    assert kept.get(key(**other)) is None and kept.get(key()) is not None


def test_the_digest_of_a_candidate_is_of_all_that_its_code_is_made_from():
    def digest(module: bytes = b"m", flags: str = "", passes: int = 0, package: str = "", **later: str) -> str:
        options = KernelOptions(frontend="cuda", flags=(flags,), pass_configs={"a": passes})
        record = SimpleNamespace(options=options)
        origin: Any = SimpleNamespace(record=record, settings=SimpleNamespace(nvcc_flags=(package,)))
        return digest_of(module, later, origin)

    others = [{"module": b"n"}, {"flags": "-G"}, {"passes": 1}, {"package": "-G"}, {"header": "1"}, {"header": "2"}]
    made = [digest(), *(digest(**other) for other in others)]
    assert len(set(made)) == len(made) and digest() == made[0]
    assert digest(header="1", absent="") == made[-2], "what was looked for in vain"


def test_timings_of_other_devices_tools_and_ways_to_measure_are_kept_apart(monkeypatch: pytest.MonkeyPatch):
    def made_with(rounds: int = 5, cpus: int = 4, tvm: str = "1", language: str = "", **other: Any) -> str:
        data = {"tvm": {"tvm": "0.27", "identity": tvm}, "host_compiler": {"version": "gcc 12"}}
        tools = SimpleNamespace(data=data, data_of_front_end=lambda name: {"identity": language} if language else {})
        choice = Choice({}, {"llvm": ({},), "cuda": ({},)})
        record = SimpleNamespace(name="gemm", options=KernelOptions(frontend="triton"), choices=[choice])
        selection = SimpleNamespace(compiled=None, archs={"llvm": ("x86-64-v3",), "cuda": ("sm_90a",)})
        monkeypatch.setattr(tuner, "usable_cpus", lambda: cpus)
        origin = SimpleNamespace(record=record, settings=SimpleNamespace(debug="no"))
        monkeypatch.setattr(tuner, "origin_in", lambda *given: origin)
        monkeypatch.setattr(tuner, "job_of", lambda *given: SimpleNamespace(tools=tools, selection=selection, jit="on"))
        device = Device(**{"spec": "cpu", "name": "EPYC", "count": 4, **other})
        found = tuner.Tuner(tuner.Request(Path("k.py"), "gemm", device, policy=Policy(rounds=rounds)), Progress())
        return found.key(made, made, {}).made_with

    made: Any = SimpleNamespace(candidate=SimpleNamespace(config={}), digest="")
    gpu = {"spec": "cuda:0", "capability": 90, "driver": "580"}
    others = [{"rounds": 3}, {"cpus": 2}, {"tvm": "2"}, {"language": "3.9"}, {"name": "Xeon"}, {"count": 8}]
    others += [gpu, {**gpu, "driver": "590"}]
    keys = [made_with(), *(made_with(**other) for other in others)]
    assert len(set(keys)) == len(keys) and made_with() == keys[0]
    assert made_with(**{**gpu, "spec": "cuda:1"}) == made_with(**gpu), "an equal device"


def test_the_folder_of_locks_is_this_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert place_of("cuda:1") == tmp_path / f"kernelwright-{os.getuid()}" / "tune-cuda-1.lock"
    assert place_of("cpu").parent.stat().st_mode & 0o777 == 0o700
    mine = os.getuid()
    (tmp_path / f"kernelwright-{mine + 1}").mkdir()
    monkeypatch.setattr("os.getuid", lambda: mine + 1)
    with pytest.raises(SettingsError, match="is another user's"):
        place_of("cpu")
    (tmp_path / f"kernelwright-{mine + 2}").touch()
    monkeypatch.setattr("os.getuid", lambda: mine + 2)
    with pytest.raises(SettingsError, match="cannot be made: File exists"):
        place_of("cpu")


# Devices, tables and lines.


def test_the_cpu_is_named_as_the_system_names_it():
    device = device_of("cpu")
    assert device.target == "llvm" and device.count >= 1 and device.name
    for spec in ("gpu", "cuda:x", "cpu:0", "cuda:-1"):
        with pytest.raises(SettingsError, match="write cpu"):
            device_of(spec)


def test_the_result_says_what_was_chosen_and_how_much_faster_it_is():
    candidates = tuple(Candidate(n, {"block": 32 * n}, {"block": 32 * n}, f"block-{n}") for n in range(2))
    entries = ({0: Entry((10, 11, 12), (10, 11, 12)), 1: Entry((5, 6, 5), (10, 11, 10))},)
    tuned = Tuned({"n": 4}, candidates, {}, ({"m": 16},), entries, {}, (1,), (), Rules((), ((None, 1),)))
    assert result_lines([tuned])[1].split() == ["n=4", "m=16", "block=32", "5", "10", "0.500", "0.091"]
