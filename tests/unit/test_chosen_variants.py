"""Which candidates of a kernel with a space are built, and what tuning tables become in a package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from kernelwright.backends.files import UnitFiles, VariantFiles
from kernelwright.core.arch import target_of
from kernelwright.core.errors import SettingsError
from kernelwright.define.configs import slugs
from kernelwright.define.space import Choice, targets_with_points, variants_of
from kernelwright.define.tables import tables_in
from kernelwright.define.tuning import Rule, TableDevice, TableFile, TunedConfig
from kernelwright.runtime.tables import DeviceTable, Rules
from kernelwright.stages.selection import KernelSelection
from kernelwright.stages.tuned import choose
from kernelwright.stages.tuning import Tuning
from support.scons_tree import GEMM

H100 = TableDevice("cuda", "sm_90a", "NVIDIA H100", 132)
A100 = TableDevice("cuda", "sm_80", "NVIDIA A100", 108)
CPU = TableDevice("llvm", "x86-64-v3", "AMD EPYC", 2)

ARCHS: dict[str, tuple[str, ...]] = {"llvm": ("x86-64-v2", "x86-64-v3"), "cuda": ("sm_80", "sm_90a")}


def selected(choices: tuple[Choice, ...], archs: Mapping[str, tuple[str, ...]] = ARCHS) -> KernelSelection:
    configs = tuple(variants_of(choices))
    record = replace(GEMM, configs=configs, slugs=tuple(slugs(configs)), choices=choices)
    return KernelSelection(record, dict(archs), ("tvm_ffi",), ())


def blocks(*values: int) -> tuple[dict[str, int], ...]:
    return tuple({"block": value} for value in values)


SAME = (
    Choice({"n": 1}, {"llvm": blocks(8, 16, 32), "cuda": blocks(8, 16, 32)}),
    Choice({"n": 2}, {"llvm": blocks(8, 16, 32), "cuda": blocks(8, 16, 32)}),
)


def table(device: TableDevice, *configs: TunedConfig, name: str = "tuning/gemm.json") -> TableFile:
    return TableFile("gemm", device, {}, configs, name)


def tuned(n: int, *rules: tuple[int | None, int], by: tuple[str, ...] = ("m",)) -> TunedConfig:
    return TunedConfig({"n": n}, by, tuple(Rule({"block": block}, upto) for upto, block in rules))


def built(selection: KernelSelection) -> list[tuple[Any, ...]]:
    """Config and archs of each variant."""
    record = selection.record
    return [(*config.values(), selection.archs_of(slug)) for config, slug in record.listed]


def test_the_declared_variants_come_first_for_all_archs_and_those_of_tables_for_theirs() -> None:
    tables = [table(A100, tuned(2, (64, 32), (None, 16))), table(H100, tuned(1, (None, 16)), tuned(2, (None, 32)))]
    chosen = choose(selected(SAME), tables)
    assert built(chosen.selection) == [
        *((1, 8, ARCHS), (2, 8, ARCHS), (2, 32, {"cuda": ("sm_80", "sm_90a")}), (2, 16, {"cuda": ("sm_80",)})),
        (1, 16, {"cuda": ("sm_90a",)}),
    ]
    assert chosen.selection.declared == 2 and chosen.stale == () and chosen.selection.tabled == {}
    assert chosen.selection.tables == (
        DeviceTable("cuda", "sm_80", "NVIDIA A100", 108, {1: Rules(("m",), ((64, 2), (None, 3)))}),
        DeviceTable("cuda", "sm_90a", "NVIDIA H100", 132, {0: Rules((), ((None, 4),)), 1: Rules((), ((None, 2),))}),
    )


def test_a_kernel_without_a_space_stays_as_it_is_and_with_one_has_the_slugs_of_all_candidates():
    selection = KernelSelection(GEMM, dict(ARCHS), ("tvm_ffi",), ())
    assert choose(selection, [table(CPU)]).selection is selection
    assert (selection.declared, selection.tables, selection.archs_of("m-1")) == (None, (), ARCHS)
    everything = selected(SAME)
    names = dict(zip(map(str, everything.record.configs), everything.record.slugs, strict=True))
    chosen = choose(everything, [table(CPU, tuned(1, (None, 32)))]).selection.record
    assert [names[str(config)] for config in chosen.configs] == list(chosen.slugs)


def test_adjacent_ranges_with_one_answer_merge_and_rules_that_change_nothing_go() -> None:
    configs = (tuned(1, (1, 16), (8, 8), (64, 8), (128, 32), (None, 32), by=("m", "k")), tuned(2, (64, 8), (None, 8)))
    (found,) = choose(selected(SAME), [table(CPU, *configs)]).selection.tables
    assert found.rules == {0: Rules(("m", "k"), ((1, 2), (64, 0), (None, 3)))}
    assert choose(selected(SAME), [table(CPU, tuned(1, (None, 8)))]).selection.tables == ()


def test_a_point_of_another_type_is_stale_also_for_an_arch_that_is_not_built_and_what_is_not_selected_is_not():
    file = table(CPU, tuned(1, (64, 64), (None, 16)))
    chosen = choose(selected(SAME, {"cuda": ("sm_80",)}), [file])
    assert built(chosen.selection) == [(1, 8, {"cuda": ("sm_80",)}), (2, 8, {"cuda": ("sm_80",)})]
    assert chosen.selection.tables == () and len(chosen.stale) == 1
    file = table(CPU, TunedConfig({"n": 1}, (), (Rule({"block": 16.0}),)))
    assert len(choose(selected(SAME), [file]).stale) == 1
    file = table(CPU, TunedConfig({"n": True}, (), (Rule({"block": 16}),)))
    assert len(choose(selected(SAME), [file]).stale) == 1
    chosen = choose(selected(SAME[:1]), [table(CPU, tuned(2, (None, 16)))], replace(GEMM, choices=SAME))
    assert chosen.stale == () and chosen.selection.tables == () and len(chosen.selection.record.configs) == 1


PREFERRED = tuple(replace(choice, preferred={"sm_90a": {"block": 32}, "sm_100a": {"block": 16}}) for choice in SAME)


def test_what_the_definition_prefers_is_the_last_table_of_its_arch_behind_those_of_files() -> None:
    chosen = choose(selected(PREFERRED), [table(A100, tuned(2, (None, 16)))]).selection
    assert built(chosen) == [
        *((1, 8, ARCHS), (2, 8, ARCHS), (2, 16, {"cuda": ("sm_80",)}), (1, 32, {"cuda": ("sm_90a",)})),
        (2, 32, {"cuda": ("sm_90a",)}),
    ]
    assert chosen.declared == 2
    assert chosen.tables[1:] == (
        DeviceTable("cuda", "sm_90a", "", 0, {0: Rules((), ((None, 3),)), 1: Rules((), ((None, 4),))}),
    )
    assert chosen.places[1:] == ({0: GEMM.location, 1: GEMM.location},)
    first, last = choose(selected(PREFERRED), [table(H100, tuned(1, (None, 8)))]).selection.tables
    assert first.rules == {0: Rules((), ((None, 0),)), 1: Rules((), ((None, 2),))}, (
        "the measured answer is the first point"
    )
    assert (last.name, last.rules.keys()) == ("", {0, 1})
    without = selected(PREFERRED, {"llvm": ARCHS["llvm"], "cuda": ("sm_80",)})
    for chosen in (choose(without), choose(selected(PREFERRED), preferred=False)):
        assert chosen.selection.tables == () and len(chosen.selection.record.configs) == 2


APART = (Choice({"n": 1}, {"llvm": blocks(8, 16), "cuda": blocks(16, 8)}),)


def test_a_target_has_variants_of_its_own_points_and_on_demand_of_the_archs_of_the_machine() -> None:
    chosen = choose(selected(APART), [table(H100, tuned(1, (64, 8), (None, 16)))]).selection
    assert built(chosen) == [(1, 8, {"llvm": ARCHS["llvm"], "cuda": ("sm_90a",)}), (1, 16, {"cuda": ARCHS["cuda"]})]
    assert chosen.declared == 2 and chosen.tabled == {"n-1_block-8": ("cuda",)}
    assert chosen.tables[0].rules == {1: Rules(("m",), ((64, 0), (None, 1)))}
    some = (Choice({"n": 1}, {"llvm": blocks(8), "cuda": blocks(4)}), Choice({"n": 2}, {"cuda": blocks(4)}))
    assert built(choose(selected(some)).selection)[-1] == (2, 4, {"cuda": ARCHS["cuda"]})
    chosen = choose(selected(some[1:]), [table(CPU, tuned(2, (None, 4)))])
    assert chosen.selection.archs == {"cuda": ARCHS["cuda"]} and len(chosen.stale) == 1
    nothing = choose(selected(some[1:], {"llvm": ("x86-64-v3",)})).selection
    assert (nothing.archs, nothing.record.configs) == ({}, ())
    assert targets_with_points(some, ("llvm", "cuda")) == ("llvm", "cuda") == targets_with_points((), ("llvm", "cuda"))
    assert targets_with_points(some[1:], ("llvm", "cuda")) == ("cuda",)
    selection = replace(choose(selected(SAME), [table(A100, tuned(1, (None, 16)))]).selection, compiled=("sm_80",))
    assert built(selection)[0][2] == {"llvm": ARCHS["llvm"], "cuda": ("sm_80",)}
    assert built(selection)[2][2] == {"cuda": ("sm_80",)}


def test_a_rule_for_what_was_not_made_or_has_no_code_for_the_arch_gives_way_to_the_declared_variant() -> None:
    """A partial package lacks variants. So their numbers change, too."""

    def made(slug: str, *archs: str) -> VariantFiles:
        return VariantFiles(slug, {}, tuple(UnitFiles(target_of(arch), (arch,), "", "", "") for arch in archs))

    rules = Rules(("m",), ((8, 2), (16, 3), (32, 4), (None, 5)))
    tables = (DeviceTable("cuda", "sm_90a", "H100", 132, {0: rules, 1: rules}),)
    tuning = Tuning(tuple("abcdef"), 2, tables, {}, ({0: "x:1", 1: "x:2"},))
    variants = (made("b", "sm_90a"), made("c", "sm_80"), made("e", "sm_80", "sm_90a"), made("f", "x86-64-v3"))
    found = tuning.of(variants)
    assert (found.slugs, found.declared, found.places) == (("b", "c", "e", "f"), 1, ({0: "x:2"},))
    assert found.tables[0].rules == {0: Rules(("m",), ((8, 0), (16, 0), (32, 2), (None, 0)))}


def test_tables_are_found_by_the_names_of_their_files_and_what_is_no_folder_does_not_count_as_none(tmp_path):
    assert tables_in(tmp_path, "tuning") == tables_in(tmp_path, "") == tables_in(tmp_path, "none/below") == {}
    (tmp_path / "elsewhere").mkdir()
    for name in ("gemm.b.json", "gemm.a.json", "other.json", ".gemm.c.json", "gemm.txt", "README.md"):
        (tmp_path / "elsewhere" / name).touch()
    for name, target in {"tuning": "elsewhere", "dangling": "gone", "loop": "loop"}.items():
        (tmp_path / name).symlink_to(target)
    expected = {"gemm": ("tuning/gemm.a.json", "tuning/gemm.b.json"), "other": ("tuning/other.json",)}
    assert tables_in(tmp_path, "tuning") == expected
    wrong = {"tuning/README.md": "Not a directory", "dangling": "a link to nothing", "loop": "symbolic links"}
    for name, said in wrong.items():
        with pytest.raises(SettingsError, match=f"cannot be read as the folder of the tuning tables: .*{said}"):
            tables_in(tmp_path, name)
