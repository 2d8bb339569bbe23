"""What a kernel that is compiled on demand is known by, and what it keeps."""

from __future__ import annotations

import shutil
import time
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelwright import backends
from kernelwright.core.dependencies import EDITED
from kernelwright.core.errors import Where
from kernelwright.core.request import canonical, deciding, digest
from kernelwright.define.settings import Settings, affecting
from kernelwright.define.space import Choice
from kernelwright.discover.discovery import DefinitionRecord, KernelRecord
from kernelwright.discover.selection import KernelSelection
from kernelwright.ondemand import build, watched
from kernelwright.ondemand.build import Compiled, Job, MadeWith, key_of_made, read_by
from kernelwright.ondemand.loaded import KernelLoader
from kernelwright.ondemand.origin import alike_in_c
from kernelwright.ondemand.reached import Reached
from kernelwright.package.manifest import sealed_document
from kernelwright.runtime.loader import SCHEMA
from kernelwright.runtime.tables import DeviceTable, Rules
from kernelwright.stages.stage import Stage
from kernelwright.state.entry import entry_key
from kernelwright.toolchain.distribution import Distribution
from scons_tree import GEMM, TOOLS
from support.variations import variations

KEY = "ab" * 32


TUNED = replace(GEMM, choices=(Choice({}, {"llvm": ({"block": 1},)}, {"n": (1,)}, {"x86-64-v3": {"block": 1}}),))
SELECTED = KernelSelection(
    *(TUNED, {"llvm": ("x86-64-v3",)}, ("tvm_ffi",), ()),
    tables=(DeviceTable("llvm", "x86-64-v3", "a CPU", 2, {0: Rules((), ((None, 1),))}),),
    places=({0: "a.json:1"},),
)
DEFINITION = DefinitionRecord("kernels/gemm.py", {"kernels/gemm.py": "1"}, (TUNED,), surroundings={"/installed/a": "1"})
SESSION: Any = SimpleNamespace(interpreter=["3.11"], toolchain=None)
JOB = Job(DEFINITION, SELECTED, Settings(), SESSION, SELECTED, {}, {"gemm llvm": "1"})

ASIDE = {
    Job: {"session", "contexts"},
    MadeWith: set(),
    DefinitionRecord: {"kernels", "later", "recorded", "shared", "untracked"},
    KernelRecord: {"location"},
    KernelSelection: {"places"},
    Choice: set(),
    DeviceTable: set(),
    Settings: {found.name for found in fields(Settings)} - set(affecting(Settings())),
}
"""What decides nothing of a kernel that is compiled on demand."""


@pytest.mark.parametrize("kind", ASIDE, ids=lambda kind: kind.__name__)
def test_what_decides_nothing_of_a_kernel_is_known(kind: type) -> None:
    assert {found.name for found in fields(kind)} - set(deciding(kind)) == ASIDE[kind]


@pytest.mark.parametrize("request_", [JOB, MadeWith("1", "2", ({},), {}, ())], ids=["job", "what it is made with"])
def test_a_field_of_a_job_is_in_its_key_unless_it_is_marked(request_: Any) -> None:
    names = set()
    for name, other, decides in variations(request_):
        assert (canonical(other) != canonical(request_)) == decides, name
        names.add(name)
    assert request_ is not JOB or {".selection.record.name", ".backward.tables[0].rules", ".settings.compress"} <= names


def test_a_key_is_of_the_job_and_of_what_it_is_made_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def key_with(tools: Any, job: Job = JOB, triton: str = "1") -> str:
        tools.__dict__["of_front_ends"] = {"triton": Distribution("3.9.0", triton)}
        monkeypatch.setattr(build, "find_tools", lambda settings, chain: tools)
        return replace(job).key

    first = key_with(replace(TOOLS))
    assert first == key_with(replace(TOOLS)) == digest([JOB, replace(JOB).made_with])
    assert first != key_with(replace(TOOLS, lowerer=replace(TOOLS.lowerer, identity="another")))
    assert first != key_with(replace(TOOLS), replace(JOB, settings=replace(JOB.settings, compress="size")))
    backward = replace(JOB, backward=replace(SELECTED, record=replace(TUNED, frontend="triton"), backends=("torch",)))
    assert key_with(replace(TOOLS), triton="2") == first, "it is in another language"
    assert key_with(replace(TOOLS), backward, "2") != key_with(replace(TOOLS), backward)
    in_process = replace(JOB, definition=replace(DEFINITION, dependencies={}))
    other = {"session": SimpleNamespace(**{**vars(SESSION), "interpreter": ["3.12", "numpy 2.4"]})}
    assert key_with(replace(TOOLS), replace(JOB, **other)) != first
    assert key_with(replace(TOOLS), replace(in_process, **other)) == key_with(replace(TOOLS), in_process)
    alone = key_with(replace(TOOLS), backward)
    monkeypatch.setattr(type(backends.get("torch")), "build_versions", lambda backend: {"torch": "2.99"})
    assert key_with(replace(TOOLS)) == first and key_with(replace(TOOLS), backward) != alone


def test_each_checkout_has_a_log_of_its_own_of_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = replace(TOOLS)
    tools.__dict__["of_front_ends"] = {}
    monkeypatch.setattr(build, "find_tools", lambda settings, chain: tools)
    sessions: list[Any] = [SimpleNamespace(**vars(SESSION), root=Path(root)) for root in ("/one", "/two")]
    one, two = (replace(JOB, session=session) for session in sessions)
    assert one.key == two.key and one.failed_key != two.failed_key


def stage(outside: dict[str, str] | None = None, **later: str) -> Stage:
    return Stage("PTX", "scale", Where(), None, print, {}, [], later=later, outside=outside or {})


def test_a_kernel_is_made_of_what_all_its_stages_read() -> None:
    stages = [stage(a="1"), stage(), stage({"/runtime.a": "2"}, b="3")]
    assert read_by(stages) == {"a": "1", "/runtime.a": "2", "b": "3"}


def test_a_kernel_two_stages_of_which_read_a_file_differently_is_never_found_again() -> None:
    later = read_by([stage(a="1", b="1"), stage(a="1", b="2"), stage(a="1", b="1")])
    assert later == {"a": "1", "b": EDITED}
    keys = {key_of_made(KEY, later) for _ in range(3)}
    assert len(keys) == 3 and entry_key(KEY, later) not in keys
    assert key_of_made(KEY, {"a": "1"}) == entry_key(KEY, {"a": "1"})


def test_a_kernel_keeps_the_device_code_that_it_loads_later(tmp_path: Path) -> None:
    image = tmp_path / "images/scale/sm_80.cubin"
    image.parent.mkdir(parents=True)
    image.write_bytes(b"code")
    digest = sha256(b"code").hexdigest()
    listed = {"file": "scale/sm_80.cubin", "sha256": digest}
    variant = {"slug": "default", "units": [{"target": "cuda", "images": {"sm_80": listed}}]}
    document = {
        "schema": SCHEMA,
        "device_code": {"folder": "images", "packages": {}},
        "kernels": {"scale": {"variants": [variant]}},
        "files": {"images/scale/sm_80.cubin": {"sha256": digest}},
    }
    (tmp_path / "manifest.json").write_text(sealed_document(document))
    loader = KernelLoader(Compiled(tmp_path, KEY, {}, False), "scale")
    loader.provider("scale")
    shutil.rmtree(tmp_path)
    arch, path = loader.image("scale", "default", "sm_80", 0, 80)
    assert arch == "sm_80" and path.read_bytes() == b"code"


def test_a_call_reads_a_file_again_until_its_stamp_is_older_than_the_clock_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit may leave the very stamp that was taken just before it."""
    file, changed = tmp_path / "a.py", [time.time_ns()]
    monkeypatch.setattr(watched, "FIELDS", lambda status: (1, 2, changed[0], 3))
    for text, ctime, is_seen in (("1", changed[0], True), ("2", 1, False)):
        file.write_text(text)
        changed[0] = ctime
        watch = watched.Watch(tmp_path, Reached())
        watch.look_at(["a.py"])
        watch.rely_on({"a.py": sha256(text.encode()).hexdigest()})
        assert watch.settle() and watch.is_current()
        file.write_text("3")
        assert watch.is_current() != is_seen


def test_a_call_sees_that_packages_are_looked_for_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("first", "second"):
        (tmp_path / place / "acme_p").mkdir(parents=True)
        (tmp_path / place / "acme_p/a.h").write_text(place)
    monkeypatch.setattr(watched, "COARSE_NS", -(10**12))  # all stamps are old
    monkeypatch.syspath_prepend(str(tmp_path / "second"))
    watch, name = watched.Watch(tmp_path, Reached()), "/package:acme_p//a.h"
    watch.rely_on({name: sha256(b"second").hexdigest()})
    assert watch.settle() and watch.is_current()
    monkeypatch.syspath_prepend(str(tmp_path / "first"))
    assert not watch.is_current()


def test_slugs_that_are_alike_in_c_are_in_the_key() -> None:
    """The symbols in the library depend on them, and the definition's files do not tell which configs are recorded."""
    one = replace(TUNED, slugs=("x-1_5",), configs=({"x": "1_5"},))
    others = replace(TUNED, slugs=("x-1.5", "x-1_5", "x-2"))
    selected = replace(SELECTED, record=one)
    assert alike_in_c(DefinitionRecord("k.py", {}, (others,)), selected) == [["x-1.5", "x-1_5"]]
    assert alike_in_c(DefinitionRecord("k.py", {}, (one,)), selected) == [["x-1_5"]]
