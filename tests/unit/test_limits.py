"""Limits on registers and spills."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelwright.core.errors import KernelwrightError, Where
from kernelwright.stages import entry
from kernelwright.toolchain.limits import LimitError, check_limits, read_reports, read_usage

WHERE = Where("gemm", "block_m-64", "nvcc", "kernels/gemm.py:7")


def usage(**functions: tuple[int, int, int]) -> dict[str, Any]:
    """The content of an <arch>.json; each function has registers, spill stores and spill loads."""
    numbers = ("registers", "spill_store_bytes", "spill_load_bytes")
    rest = dict.fromkeys(("stack_bytes", "shared_bytes", "constant_bytes"), 0)
    kernels = {name: dict(zip(numbers, used, strict=True)) | rest for name, used in functions.items()}
    return {"schema": 1, "arch": "sm_80", "kernels": kernels}


def check(used: dict[str, Any], registers: int | None, spills: int | None, where: Where = WHERE) -> None:
    check_limits("sm_80", used, registers, spills, where)


@pytest.mark.parametrize(("registers", "spills"), [(None, None), (168, 96), (168, None), (None, 96), (255, 1000)])
def test_limits_that_are_reached_but_not_exceeded_pass(registers: int | None, spills: int | None):
    check(usage(gemm_kernel=(168, 48, 48)), registers, spills)


def test_every_violation_is_listed_at_its_place_and_registers_and_spills_are_not_of_ptx() -> None:
    with pytest.raises(LimitError) as caught:
        check(usage(gemm_kernel=(168, 0, 0)), 128, None)
    assert caught.value.message == "gemm_kernel uses 168 registers for sm_80, max_registers is 128"
    assert str(caught.value).startswith("kernels/gemm.py:7 gemm/block_m-64 [nvcc]: gemm_kernel uses 168")
    assert "raise the limit" in (caught.value.remedy or "")
    with pytest.raises(LimitError, match=r"gemm_kernel spills 96 bytes \(stores 48, loads 48\) for sm_80"):
        check(usage(gemm_kernel=(16, 48, 48)), None, 95)
    with pytest.raises(LimitError, match="max_spills is 0"):
        check(usage(gemm_kernel=(16, 0, 4)), None, 0)
    check({"schema": 1, "arch": "compute_80", "kernels": {}}, 0, 0)
    with pytest.raises(LimitError) as caught:
        check(usage(b_kernel=(200, 8, 0), a_kernel=(129, 0, 0), c_kernel=(10, 0, 0)), 128, 0)
    assert "\n" not in caught.value.message
    assert (caught.value.detail or "").splitlines() == [
        "a_kernel uses 129 registers for sm_80, max_registers is 128",
        "b_kernel uses 200 registers for sm_80, max_registers is 128",
        "b_kernel spills 8 bytes (stores 8, loads 0) for sm_80, max_spills is 0",
    ]
    for used in (usage(a=(168, 0, 0)), usage(a=(168, 0, 0), b=(168, 0, 0))):
        with pytest.raises(LimitError) as caught:
            check(used, 128, None, Where("other", "n-1", "nvcc"))
        assert caught.value.where == Where("other", "n-1", "nvcc")
        assert "raise the limit" in (caught.value.remedy or "")
    assert caught.value.message == "device functions exceed limits for sm_80 in 2 places"


@pytest.mark.parametrize(("slug", "unit", "arch"), list(product(("m-1", "m-2"), (0, 1), ("sm_80", "sm_90a"))))
def test_a_limit_is_for_all_variants_their_units_and_archs(slug, unit, arch, monkeypatch):
    """Code for each arch of its own is a unit of its own."""
    used = {(s, u, a): usage(f=(16, 0, 0)) for s in ("m-1", "m-2") for u in (0, 1) for a in ("sm_80", "sm_90a")}
    used[slug, unit, arch] = usage(f=(129, 0, 0))
    monkeypatch.setattr(entry, "usages_of", lambda of: {a: used[(*of, a)] for a in ("sm_80", "sm_90a")})
    variants: Any = [SimpleNamespace(slug=s, units=[(s, 0), (s, 1)]) for s in ("m-1", "m-2")]
    described = entry.Entry("gemm", *(None, None), limits=(128, 0), images_in="", compiler="nvcc")  # type: ignore[arg-type]
    with pytest.raises(LimitError, match=f"gemm/{slug} .*f uses 129 registers for {arch}"):
        described.check_limits(variants, WHERE)


def test_usage_is_read_and_every_number_of_it_checked(tmp_path: Path):
    path = tmp_path / "sm_80.json"
    good = usage(gemm_kernel=(168, 48, 0))
    path.write_text(json.dumps(good))
    assert read_usage(path) == good
    for name in good["kernels"]["gemm_kernel"]:
        bad = usage(gemm_kernel=(168, 48, 0))
        bad["kernels"]["gemm_kernel"][name] = "168"
        path.write_text(json.dumps(bad))
        with pytest.raises(KernelwrightError, match=f"kernels.gemm_kernel.{name} is '168'") as caught:
            read_usage(path)
        assert caught.value.remedy == "remove it and try again"


def test_what_objects_report_is_put_together_by_arch_and_damage_names_the_file(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    kernels = usage(b=(1, 0, 0), a=(2, 0, 0))["kernels"]
    one.write_text(json.dumps({"archs": {"sm_90": {"b": kernels["b"]}, "sm_80": {"b": kernels["b"]}}}))
    two.write_text(json.dumps({"archs": {"sm_80": {"a": kernels["a"]}}}))
    reports = read_reports([str(one), str(two)])
    assert list(reports) == ["sm_80", "sm_90"] and list(reports["sm_80"]["kernels"]) == ["a", "b"]
    assert reports["sm_90"] == {"kernels": {"b": kernels["b"]}}
    for wrong in ({"ARCHS": {}}, {"archs": {"sm_80": {"a": {**kernels["a"], "registers": -1}}}}):
        two.write_text(json.dumps(wrong))
        with pytest.raises(KernelwrightError) as caught:
            read_reports([str(one), str(two)])
        assert "two.json" in str(caught.value) and caught.value.remedy == "remove it and try again"
