"""What a kernel object on demand relies on: files that it keeps, and stamps that a call compares."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from kernelwright import kernel
from kernelwright.core.errors import KernelwrightError
from kernelwright.ondemand import eager, files, loaded, watched
from kernelwright.ondemand.build import Compiled
from kernelwright.ondemand.eager import _exact_key, _key, _key_with_strides
from kernelwright.ondemand.loaded import KernelLoader
from kernelwright.ondemand.options import Options
from kernelwright.ondemand.origin import narrowed
from kernelwright.ondemand.reached import Reached, reached_by
from kernelwright.ondemand.store import KernelStore
from kernelwright.package.manifest import sealed_document
from kernelwright.runtime.loader import SCHEMA
from support.moments import wait_for
from support.scons_tree import GEMM


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
    loader = KernelLoader(Compiled(tmp_path, "ab" * 32, {}, False), "scale")
    loader.provider("scale")
    shutil.rmtree(tmp_path)
    arch, path = loader.image("scale", "default", "sm_80", 0, 80)
    assert arch == "sm_80" and path.read_bytes() == b"code"


def test_ptx_that_is_made_later_is_refused_where_a_header_is_not_what_it_was(tmp_path, monkeypatch):
    header, made = tmp_path / "a.h", tmp_path / "made.ptx"
    for path in (header, made, tmp_path / "device.cu"):
        path.write_text(path.name)
    monkeypatch.setattr(loaded, "kernel_context", lambda *given: SimpleNamespace(run=None))
    monkeypatch.setattr("kernelwright.ondemand.run.OnDemandRun", lambda *given: None)
    monkeypatch.setattr("kernelwright.stages.device.ptx_of", lambda *given: SimpleNamespace(paths=[str(made)]))
    monkeypatch.setattr("kernelwright.stages.execution.attempt", lambda *given: None)
    session = SimpleNamespace(root=tmp_path, store=KernelStore(tmp_path / "cache", 1 << 20))
    job: Any = SimpleNamespace(record=GEMM, slug="m-1", session=session)
    given = job, tmp_path, "ptx", "sm_80", {"a.h": sha256(b"a.h").hexdigest()}
    assert loaded._made(*given) == "made.ptx"
    header.write_text("edited")
    with pytest.raises(KernelwrightError, match=r"its PTX cannot be made any more: a\.h is not what the kernel was"):
        loaded._made(*given)


def test_a_call_reads_a_file_again_until_its_stamp_is_older_than_the_clock_is_exact(tmp_path, monkeypatch):
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


def test_an_edit_with_the_size_and_the_time_of_before_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(watched, "COARSE_NS", -(10**12))  # all stamps are old
    file = tmp_path / "a.py"

    def write(text: str) -> int:
        file.write_text(text)
        os.utime(file, (1, 1))
        return file.stat().st_ctime_ns

    watch, written = watched.Watch(tmp_path, Reached()), write("1")
    watch.rely_on({"a.py": sha256(b"1").hexdigest()})
    assert watch.settle() and watch.is_current()
    wait_for(lambda: write("2") > written, "the clock of files stands still")
    assert not watch.is_current()


def test_a_call_sees_that_packages_are_looked_for_elsewhere_and_what_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("first", "second"):
        (tmp_path / place / "acme_p").mkdir(parents=True)
        (tmp_path / place / "acme_p/a.h").write_text(place)
    monkeypatch.setattr(watched, "COARSE_NS", -(10**12))  # all stamps are old
    monkeypatch.syspath_prepend(str(tmp_path / "second"))
    watch, name = watched.Watch(tmp_path, Reached()), "/package:acme_p//a.h"
    watch.rely_on({name: sha256(b"second").hexdigest()})
    assert watch.settle() and watch.is_current()
    with monkeypatch.context() as forgotten:
        forgotten.setattr(watched.SESSIONS, "generation", -1)
        assert not watch.is_current() and not watch.settle()
    assert watch.settle() and watch.is_current()
    monkeypatch.syspath_prepend(str(tmp_path / "first"))
    assert not watch.is_current()


class TagScope:
    """What ``tvm.te.tag_scope`` makes."""

    __module__, _current, tag = "tvm.te.tag", None, "one"


@pytest.mark.parametrize(
    "change",
    [
        lambda names: setattr(names["TAG"], "tag", "other"),
        lambda names: setattr(TagScope, "_current", names["TAG"]),
        lambda names: names.update(SIZES=(1, True)),
        lambda names: names.update(DTYPE=numpy.dtype("int8")),
        lambda names: setattr(names["inner"], "__code__", names["definition"].__code__),
    ],
)
def test_what_a_function_has_around_it_is_compared(change: Callable[..., object], monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "tvm.te.tag", SimpleNamespace(TagScope=TagScope))
    monkeypatch.setattr(TagScope, "_current", None)
    names: dict[str, Any] = {"TAG": TagScope(), "SIZES": (1, 1), "DTYPE": numpy.dtype("float32")}
    exec("inner = lambda: 1\ndef definition():\n    return TAG, SIZES, DTYPE, inner()", names)
    reached = reached_by([names["definition"]])
    assert reached.doubt is None and reached.is_current()
    change(names)
    assert not reached.is_current()


def test_what_decides_which_variant_fits_is_in_the_key_of_an_argument() -> None:
    x = numpy.zeros((2, 4), "float32")
    wide = numpy.zeros((2, 8), "float32")[:, :4]
    kinds = [x, x.T, x[0], x.astype("float16"), numpy.float32(0), numpy.zeros((), "float32"), 1, 1.0, None]
    assert len({_key(each) for each in kinds}) == len(kinds)
    assert _key(x) == _key(x + 1) == _key(wide) and _key(1) == _key(2)
    for key in (_exact_key, _key_with_strides):
        assert len({key(each) for each in (*kinds, wide)}) == len(kinds) + 1 and key(x) == key(x + 1)
    assert len({_exact_key(each) for each in (1, 2, numpy.int32(2), numpy.int64(2))}) == 4


class Definition:
    """In place of a kernel whose variants are compiled; nothing but its identity differs from call to call."""

    name, identity = "gemm", "1"

    def __init__(self, configs: int = 2, **variant: Any) -> None:
        self.record = replace(GEMM, configs=GEMM.configs[:configs], slugs=GEMM.slugs[:configs])
        self.variant = variant

    def _watch(self, before: Any = None) -> Any:
        return SimpleNamespace(rely_on=lambda later: None)

    def _origin(self, watch: Any = None) -> Any:
        return SimpleNamespace(record=self.record, where=None)

    def _job(self, *given: Any, **named: Any) -> Any:
        return SimpleNamespace(identity={"gemm cuda": self.identity})

    def _variant(self, job: Any, target: str | None) -> Any:
        return self.variant, {}

    def _load_job(self, job: Any) -> Any:
        return object(), {}


X: dict[str, Any] = {"name": "x", "kind": "tensor", "dtype": "float32", "shape": ["m", 4]}
N: dict[str, Any] = {"name": "n", "kind": "scalar", "dtype": "int32"}
OF_N = {**X, "name": "y", "shape": ["m", "n + 1"]}


@pytest.mark.parametrize(
    ("definition", "key"),
    [
        (Definition(arguments=[X, X]), _key),
        (Definition(arguments=[X, {**X, "strides": ["s", 1]}]), _key_with_strides),
        (Definition(arguments=[X], requires=["m % 2 == 0"]), _exact_key),
        (Definition(arguments=[X, N]), _key),
        (Definition(arguments=[X, N, OF_N]), _exact_key),
        (Definition(1, arguments=[X, N, OF_N]), _key),
    ],
)
def test_a_choice_is_remembered_by_what_any_variant_expects_of_an_argument(definition: Any, key: Any) -> None:
    choices = eager.Choices(definition)
    choices.variant({"m": 1}, "cuda")
    assert choices.key is key


def test_what_was_made_of_equal_programs_is_taken_over_and_of_others_is_not() -> None:
    definition: Any = Definition()
    before = eager.Choices(definition)
    made = [before.kernel(config) for config in GEMM.configs]
    assert [eager.Choices(definition, before).kernel(config) for config in GEMM.configs] == made and made[0] != made[1]
    definition.identity = "2"
    assert eager.Choices(definition, before).kernel(GEMM.configs[0]) not in made


def test_what_using_makes_of_a_kernel_keeps_its_options_whatever_another_thread_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @kernel
    def scale() -> None:
        raise NotImplementedError

    monkeypatch.delitem(sys.modules, "kernelwright.worker.server", raising=False)  # in which kernels are not called
    scale._root, scale._of_file = Path("/project"), files.FileKernel(Path("/project/k.py"), "scale", Options())
    one, other = scale.using(verbose=True), scale.using(verbose=False)
    asked: list[bool | None] = []
    unchanged = files.FileKernel._origin

    def while_another_one_asks(self: files.FileKernel, watch: Any) -> Any:
        monkeypatch.setattr(files.FileKernel, "_origin", unchanged)
        other._origin()
        return unchanged(self, watch)

    def origin(path: Path, name: str, options: Options, root: Path) -> Any:
        asked.append(options.verbose)
        return SimpleNamespace(definition=None, settings=SimpleNamespace(tuning=""))

    monkeypatch.setattr(files, "origin_in", origin)
    monkeypatch.setattr(files.FileKernel, "_origin", while_another_one_asks)
    one._origin()
    assert asked == [False, True]


def test_a_call_after_using_or_bind_forgets_what_calls_before_had_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    @kernel
    def scale() -> None:
        raise NotImplementedError

    seen = lambda definition, bound: lambda: (definition._options.verbose, bound)  # noqa: E731
    monkeypatch.setattr(eager, "Eager", seen)
    assert scale() == (None, None)
    changed = scale.using(verbose=True)
    assert changed() == (True, None)
    changed.bind(dict)
    assert changed() == (True, dict) and scale() == (None, None)


def test_a_config_means_the_listed_one_with_values_of_the_same_kinds_and_signs() -> None:
    configs = tuple({"n": n} for n in (1, True, 1.0, 0.0, -0.0))
    listed = tuple(map(str, range(len(configs))))
    record = replace(GEMM, configs=configs, slugs=listed)
    assert tuple(narrowed(record, config).slugs[0] for config in configs) == listed
