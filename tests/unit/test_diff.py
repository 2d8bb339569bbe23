"""``kernelwright diff``: what differs between two packages, and the limits that CI sets for it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kernelwright.cli import main
from kernelwright.package import content
from kernelwright.package.manifest import sealed_document
from kernelwright.runtime.loader import SCHEMA
from support.hostile_wheels import draft_of, provider_wheel

USED = ("registers", "spill_store_bytes", "spill_load_bytes")


def kernel(registers: int = 32, spills: int = 0, name: str = "main_kernel", **changes: Any) -> dict[str, Any]:
    """A kernel's part of a manifest."""
    used = dict(zip(USED, (registers, spills, spills), strict=True))
    unit = {"target": "cuda", "resources": {"sm_80": {name: used}}, "images": {"sm_80": {"size": 100}}}
    variant = {"slug": "default", "archs": ["x86-64-v3", "sm_80"], "units": [unit]}
    return {"doc": "text", "variants": [variant], **changes}


def package(folder: Path, kernels: Mapping[str, Any], sizes: Mapping[str, int] | None = None, **more: Any) -> str:
    """A folder with the manifest of a built package."""
    files = {f"_lib/{name}.so": {"sha256": "a" * 64, "size": (sizes or {}).get(name, 900)} for name in kernels}
    listed = {name: {"library": f"_lib/{name}.so", **told} for name, told in kernels.items()}
    document = {"schema": SCHEMA, "package": "demo", "kernels": listed, "files": files, **more}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(sealed_document(document))
    return str(folder)


def test_what_changed_and_what_only_one_package_has_is_listed_and_the_rest_is_counted(tmp_path, capsys):
    one, other = kernel(), kernel()
    for told in (one, other):
        told["variants"].append({**told["variants"][0], "slug": "more"})  # which has code for sm_80 in both
    other["variants"][0]["archs"] = ["x86-64-v3", "sm_90a"]
    old = {"gemm": kernel(120), "gone": kernel(), "same": kernel(), "text": kernel(doc="a"), "arch": one}
    new = {"gemm": kernel(132, 8), "more": kernel(), "same": kernel(), "text": kernel(doc="b"), "arch": other}
    words = ["diff", package(tmp_path / "old", old), package(tmp_path / "new", new, {"gemm": 1000})]
    assert main(words) == 1 and main([*words, "--allow-removed"]) == 0
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "kernelwright: arch/default has no code for sm_80 any more",
        "kernelwright: gone is gone",
    ]
    assert said.out.splitlines()[:8] == [
        "changed  arch                            1,100 bytes, as before",
        "removed  arch/default                    sm_80",
        "added    arch/default                    sm_90a",
        "changed  gemm                            1,000 -> 1,100 (+100) bytes",
        "changed  gemm/default sm_80 main_kernel  120 -> 132 (+12) registers, 0 -> 16 (+16) bytes of spills",
        "removed  gone                            1,000 bytes",
        "added    more                            1,000 bytes",
        "kernels: 1 added, 1 removed, 2 changed, 2 as before",
    ]
    two, other = kernel(40, 4, "first"), kernel(40, 4, "first")
    for told, name in ((two, "second"), (other, "third")):
        used, resources = dict(zip(USED, (24, 0, 0), strict=True)), told["variants"][0]["units"][0]["resources"]
        resources["sm_80"][name] = used
        resources["sm_75"] = {name: used}  # a single function may have another name
    assert main(["diff", package(tmp_path / "old", {"gemm": two}), package(tmp_path / "new", {"gemm": other})]) == 0
    assert capsys.readouterr().out.splitlines()[1:-1] == [
        "removed  gemm/default sm_80 second  24 registers, 0 bytes of spills",
        "added    gemm/default sm_80 third   24 registers, 0 bytes of spills",
    ]


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (("--max-register-growth", "11"), "gemm/default sm_80 main_kernel: registers grew by 12, and may grow by 11"),
        (("--max-register-growth", "12"), ""),
        (("--max-spill-growth", "0"), "gemm/default sm_80 main_kernel: spills grew by 16, and may grow by 0"),
        (("--max-spill-growth", "16"), ""),
        (("--max-size-growth", "9.9%"), "gemm: its size grew from 1,000 -> 1,100 (+100) bytes, and may grow by 9.9%"),
        (("--max-size-growth", "10%"), ""),
    ],
)
def test_a_limit_that_is_exceeded_gives_exit_status_1(tmp_path, capsys, limit, said):
    old = package(tmp_path / "old", {"gemm": kernel(120)})
    new = package(tmp_path / "new", {"gemm": kernel(132, 8, "renamed_kernel"), "new": kernel(255, 99)}, {"gemm": 1000})
    assert main(["diff", *limit, old, new]) == (1 if said else 0)
    assert capsys.readouterr().err.replace("renamed", "main") == (f"kernelwright: {said}\n" if said else "")
    assert main(["diff", *limit, "--allow-removed", new, old]) == 0, "what shrinks exceeds nothing"


@pytest.mark.parametrize(
    "words", [("--max-register-growth", "x"), ("--max-size-growth", "5"), ("--max-spill-growth", "-1")]
)
def test_wrong_limits_are_wrong_usage(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["diff", *words, "old", "new"])
    assert end.value.code == 2 and "is no " in capsys.readouterr().err


def test_wheels_of_device_code_are_compared_by_their_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = provider_wheel(tmp_path / "first")
    again = Path(shutil.copyfile(provider_wheel(tmp_path / "second", version="2.0"), tmp_path / "new.whl"))
    assert main(["diff", str(wheel), str(again)]) == 0
    assert capsys.readouterr().out == "kernels: 0 added, 0 removed, 0 changed, 1 as before\n"
    other = provider_wheel(tmp_path / "third", arch="sm_90")
    assert main(["diff", str(wheel), str(other)]) == 1
    assert "the one is of demo for sm_80, and the other of demo for sm_90" in capsys.readouterr().err


def test_what_is_no_package_or_of_another_schema_is_an_error(tmp_path, capsys, monkeypatch):
    well, empty = package(tmp_path / "well", {"gemm": kernel()}), tmp_path / "empty"
    empty.mkdir()
    wheel = provider_wheel(tmp_path / "wheel")
    draft = draft_of(wheel)
    draft.more.append(("other/manifest.json", b"{}"))
    (tmp_path / "two").mkdir()
    two = draft.write(tmp_path / "two")
    data = wheel.read_bytes()
    wheel.write_bytes(data.replace(b"demo_sm_80/", b"demo_sm_81/", 1))
    damaged = package(tmp_path / "damaged", {"gemm": {"variants": "none"}})
    altered = Path(package(tmp_path / "altered", {"gemm": kernel()})) / "manifest.json"
    altered.write_text(altered.read_text().replace("main_kernel", "hind_kernel"))
    for place, said in (
        (str(empty), "cannot be read"),
        (str(tmp_path / "missing.whl"), "cannot be read"),
        (str(wheel), str(wheel)),
        (str(two), "it has 2 manifest.json, so it is no wheel of a kernel package"),
        (damaged, "its manifest is damaged"),
        (str(altered.parent), "was altered"),
    ):
        assert main(["diff", well, place]) == 1
        out, err = capsys.readouterr()
        assert out == "" and said in err and "remedy" in err
    new = provider_wheel(tmp_path / "new")
    monkeypatch.setattr(content, "SCHEMA", SCHEMA - 1)
    old = provider_wheel(tmp_path / "old")
    assert main(["diff", str(old), str(new)]) == 1
    error = capsys.readouterr().err
    assert f"is no manifest of a build: has another schema than {SCHEMA}" in error and str(old) in error


def test_a_partial_package_is_told_and_texts_cannot_control_the_terminal(tmp_path, capsys):
    old = package(tmp_path / "old", {"gemm": kernel(), "bad\x1b[2J": kernel()})
    new = package(tmp_path / "new", {"gemm": kernel()}, missing=[{"kernel": "bad"}])
    assert main(["diff", "--allow-removed", old, new]) == 0
    out = capsys.readouterr().out
    assert f"{new} was built partially" in out and "\x1b" not in out and r"bad\x1b[2J" in out


def operators(**schemas: str) -> dict[str, Any]:
    registered = {f"acme::{name}": {"schema": schema, "keys": ["CPU"]} for name, schema in schemas.items()}
    return kernel(operators={"registered": registered})


def test_operators_that_are_gone_and_other_schemas_are_told(tmp_path, capsys):
    old = {"ops": operators(silu="(Tensor x) -> Tensor", gelu="(Tensor x) -> Tensor")}
    new = {"ops": operators(silu="(Tensor x, int n=0) -> Tensor", norm="(Tensor x) -> Tensor")}
    assert main(["diff", package(tmp_path / "old", old), package(tmp_path / "new", new)]) == 1
    said = capsys.readouterr()
    assert said.err == "kernelwright: ops has no operator acme::gelu any more\n"
    assert said.out.splitlines() == [
        "changed  ops             1,000 bytes, as before",
        "removed  ops acme::gelu  (Tensor x) -> Tensor",
        "added    ops acme::norm  (Tensor x) -> Tensor",
        "changed  ops acme::silu  (Tensor x) -> Tensor, now (Tensor x, int n=0) -> Tensor",
        "kernels: 0 added, 0 removed, 1 changed, 0 as before",
    ]
