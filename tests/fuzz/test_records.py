"""Files that a build reads back: whatever they hold, it is what was written, or nothing, or a good error."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import SCons.Script  # noqa: F401 (the journal needs SCons's globals)
from hypothesis import strategies as st
from kernelwright.compilers.limits import check_limits, read_usage
from kernelwright.core.errors import KernelwrightError, WorkerError
from kernelwright.core.sealed import unsealed, unsealed_object
from kernelwright.define.tuning import Rule, TableDevice
from kernelwright.discover import discovery
from kernelwright.library import sources as library
from kernelwright.library.plan import KernelPlan, LoweredUnit, VariantPlan
from kernelwright.processes import memory
from kernelwright.processes.memory import Measurements, MemoryGovernor
from kernelwright.report import make_report
from kernelwright.scons.journal import entry_from_json
from kernelwright.state import entry as cache_entry
from kernelwright.state import settled as settled_kernels
from kernelwright.state.cache import BuildCache
from kernelwright.state.journal import SCHEMA, SEPARATOR, Journal
from kernelwright.state.settled import is_current, read_settled
from kernelwright.state.trace import read_trace
from kernelwright.state.tuning_result import (
    CandidateResult,
    ConfigResult,
    Failure,
    SizeResult,
    TuningResult,
    write_result,
)
from kernelwright.toolchain import kept_headers
from kernelwright.toolchain import probe as toolchain
from kernelwright.toolchain.host_compiler import HostCompiler
from kernelwright.toolchain.kept_headers import KeptHeaders
from kernelwright.toolchain.trimming import read_headers
from kernelwright.toolchain.tvm import Lowerer
from support.project import Project

from .harness import fuzz, only_our_errors, require_readable, write_guard
from .strategies import as_json, damaged, nested, restructured

STATE = "build/.kernelwright"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sealed_bytes(text: bytes) -> bytes:
    """As :func:`kernelwright.core.sealed.sealed`, for any bytes."""
    return b'["%s",%s]\n' % (sha256(text).encode(), text)


def sealed_with(schema: str) -> Any:
    """Makes the content of a sealed file out of the text of its object."""
    return lambda text: sealed_bytes(json.dumps(schema).encode() + b"," + text)


def is_sealed(content: bytes) -> bool:
    """Whether a digest fits, so that only the form can tell that something is wrong."""
    try:
        unsealed(content)
    except ValueError:
        return False
    return True


def changed(content: bytes, document: Any, sealed: Any) -> st.SearchStrategy[bytes]:
    """What may be found in place of a file.

    Arguments:
        content: of the file.
        document: the JSON document in it.
        sealed: makes the content of a file that has another document and a digest that fits.
    """
    return st.one_of(
        damaged(content),
        damaged(content),
        restructured(document).map(lambda value: sealed(as_json(value).encode())),
        st.sampled_from([nested(200_000), nested(900), nested(950, '{"a":', "}"), "", "null", "{", "9" * 5000]).map(
            lambda text: sealed(text.encode())
        ),
        st.binary(max_size=40).map(sealed),
    )


def drawn(data: st.DataObject, strategy: st.SearchStrategy[Any]) -> Any:
    return data.draw(strategy)


# ---- records of discovery


class NoPool:
    """In place of workers: a record that is not used is asked for again, and that is all."""

    size = 1

    def call(self, request: Any) -> Any:
        raise WorkerError("no workers here", request.where)

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture(scope="session")
def record(built: Project) -> tuple[Path, bytes, Any]:
    path = next((built.folder / STATE / "discovery").glob("*scale*.record"))
    content = path.read_bytes()
    return path, content, unsealed_object(content, discovery.FORMAT).raw


@fuzz(160, data=st.data())
def test_discovery_records(built: Project, record: tuple[Path, bytes, Any], tmp_path: Path, data: Any) -> None:
    path, content, document = record
    found = drawn(data, changed(content, document, sealed_with(discovery.FORMAT)))
    folder = tmp_path / "discovery"
    folder.mkdir(exist_ok=True)
    (folder / path.name).write_bytes(found)
    with write_guard().only(tmp_path):
        file = built.folder / "kernels/scale.py"
        records, errors = discovery.discover([file], built.folder, folder, NoPool, document["identity"])
    assert len(records) + len(errors) >= 1 and len(records) <= 1
    for kernel in (kernel for made in records for kernel in made.kernels):
        assert re.fullmatch(r"[A-Za-z]\w*", kernel.name, re.A)
        assert all(Path(slug).name == slug and slug.isprintable() for slug in kernel.slugs)
        assert len(set(kernel.slugs)) == len(kernel.slugs) == len(kernel.configs)
    for name in (name for made in records for names in made.later.values() for name in names):
        assert isinstance(name, str)
    for error in errors:
        require_readable(error)


# ---- settled kernels


@fuzz(160, data=st.data())
def test_settled_kernels(built: Project, tmp_path: Path, data: Any) -> None:
    content = (built.folder / STATE / "settled/build.demo.json").read_bytes()
    document = unsealed_object(content, settled_kernels.SCHEMA).raw
    path = tmp_path / "settled.json"
    path.write_bytes(drawn(data, changed(content, document, sealed_with(settled_kernels.SCHEMA))))
    with write_guard().only(tmp_path):
        settled = read_settled(path, document["key"])
        top = str(built.folder)
        for file, kernels in settled.of_file.items():
            is_current(top, settled.files.get(file) or {})
            assert isinstance(file, str)
            for name, kernel in kernels.items():
                # Files of these names are removed and copied.
                assert re.fullmatch(r"[A-Za-z]\w*", name, re.A)
                is_current(top, kernel.outputs)
                is_current(top, kernel.check_outputs)
                assert isinstance(kernel.stages + kernel.checks, int)
                assert isinstance(kernel.entry, str)
                for place, (source, digest) in kernel.products.items():
                    assert isinstance(digest, str)
                    assert not any(path.startswith("/") or ".." in path.split("/") for path in (place, source))
        assert all(isinstance(note, str) for notes in settled.notes.values() for note in notes)
        assert not any(path.startswith("/") or ".." in path.split("/") for path in settled.copies)
        assert all(isinstance(digest, str) for _, digest in settled.copies.values())


# ---- entries of the build cache


@fuzz(160, data=st.data(), lists=st.booleans())
def test_cache_entries(tmp_path: Path, data: Any, lists: bool) -> None:
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    made, out = tmp_path / "made", tmp_path / "out"
    made.mkdir(exist_ok=True)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    (made / "a.so").write_bytes(b"library")
    (made / "b.sh").write_bytes(b"script")
    cache, key, files = BuildCache(tmp_path / "cache", 10**6), "ab" + "0" * 62, ["a.so", "b.sh"]
    cache.store(key, made, files, {"kernels/x.json": "1234"})
    kind = b'"lists"' if lists else b'"files"'
    (entry,) = (path for path in (tmp_path / "cache").glob("??/*") if kind in path.read_bytes())
    content = entry.read_bytes()
    line, newline, rest = content.partition(b"\n")
    header = unsealed_object(line + newline, cache_entry.SCHEMA).raw
    sealed = sealed_with(cache_entry.SCHEMA)
    entry.write_bytes(found := drawn(data, changed(content, header, lambda text: sealed(text) + rest)))
    asked = []
    with write_guard().only(tmp_path):
        later = cache.fetch(key, out, files, lambda name: asked.append(name) or "1234")
    names = {path.name: path.read_bytes() for path in out.iterdir()}
    assert names == {} if later is None else sorted(names) == files
    assert all(isinstance(name, str) for name in asked)
    if found == content or (lists and later is not None):
        assert names == {"a.so": b"library", "b.sh": b"script"}
    elif not is_sealed(found.partition(b"\n")[0] + b"\n") or found[len(found) - len(rest) :] != rest:
        assert later is None
    cache.store(key, made, files, {"kernels/x.json": "1234"})
    assert cache.fetch(key, out, files, lambda name: "1234") == {"kernels/x.json": "1234"}


# ---- headers


@fuzz(160, data=st.data())
def test_kept_headers(tmp_path: Path, data: Any) -> None:
    shutil.rmtree(tmp_path / "headers", ignore_errors=True)
    header = Path(__file__)  # what was just written is not kept
    text = f'# 1 "{header}" 1\n#define A 1\n# 1 "device.cu"\nnamespace std {{ int f(int); }}\n'
    kept, key = KeptHeaders(tmp_path / "headers", ("nvcc",)), ("compute_80", "#include <a.h>")
    made = kept.of(key, None, lambda: read_headers(text))
    (path,) = (tmp_path / "headers").iterdir()
    content = path.read_bytes()
    document, sealed = unsealed_object(content, kept_headers.SCHEMA).raw, sealed_with(kept_headers.SCHEMA)
    path.write_bytes(found := drawn(data, changed(content, document, sealed)))
    with write_guard().only(tmp_path):
        headers = kept.of(key, None, lambda: read_headers(text))
    if not is_sealed(found):
        assert (headers.declarations.own, headers.macros) == (made.declarations.own, made.macros)
    assert all(isinstance(part, str) for macro in headers.macros.items() for part in macro)
    for one in headers.declarations.needed(["f", "std::f"]):
        assert isinstance(one.text, str) and all(isinstance(name, str) for name in one.names)


# ---- the journal


def shards(project: Project) -> list[Path]:
    return sorted((project.folder / STATE / "journal").glob("*.jsonl"))


def framed(name: Any, text: str) -> str:
    return sealed_bytes(f"{json.dumps(name)}{SEPARATOR}{text}".encode("utf-8", "surrogatepass")).decode(
        "utf-8", "surrogatepass"
    )


def known_lines(shard: bytes) -> list[tuple[str, Any]]:
    lines = [json.loads(line) for line in shard.decode().splitlines()[1:] if line]
    return [(name, body) for _, name, body in lines]


@st.composite
def journals(draw: st.DrawFn, content: bytes) -> bytes:
    """A damaged shard, or one whose lines fit their digests and hold something else."""
    if draw(st.booleans()):
        return draw(damaged(content))
    lines = []
    for name, body in known_lines(content):
        kind = draw(st.sampled_from(["keep", "body", "body", "name", "text"]))
        if kind == "body":
            lines.append(framed(name, as_json(draw(restructured(body)))))
        elif kind == "name":
            names = ["[]", "{}", "1", "null", '""', '"\\u0000"', '"/etc/passwd"', '"../x"', "x", '"', nested(5000)]
            rest = f"{draw(st.sampled_from(names))}{SEPARATOR}{{}}"
            lines.append(sealed_bytes(rest.encode()).decode())
        elif kind == "text":
            lines.append(
                framed(name, draw(st.sampled_from([nested(5000), "{", "", "null", "[]", "NaN", '"x"', "9" * 5000])))
            )
        else:
            lines.append(framed(name, as_json(body)))
    return SCHEMA + "".join(lines).encode("utf-8", "surrogatepass")


@fuzz(160, data=st.data())
def test_journal_shards(built: Project, tmp_path: Path, data: Any) -> None:
    sources = shards(built)
    source = drawn(data, st.sampled_from(sources))
    folder = tmp_path / "journal"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / source.name).write_bytes(drawn(data, journals(source.read_bytes())))
    names = [name for name, _ in known_lines(source.read_bytes())]
    before = {name: (built.folder / name).stat().st_mtime_ns for name in names}
    with write_guard().only(tmp_path):
        journal = Journal(folder, built.folder)
        journal.writable = True
        for name in names:
            output = journal.output(str(built.folder / name))
            assert output is None or (len(output[0]) == 4 and isinstance(output[1], str))
            journal.intact(str(built.folder / name))
            for body in journal.entries(name.rpartition("/")[0] or ".").values():
                with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
                    entry = entry_from_json(body)
                    assert hasattr(entry, "binfo") and hasattr(entry, "ninfo")
        journal.close()
        again = Journal(folder, built.folder)
        for name in names:
            assert again.output(str(built.folder / name)) == journal.output(str(built.folder / name))
    assert before == {name: (built.folder / name).stat().st_mtime_ns for name in names}


# ---- the toolchain's probes


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Probes that cost nothing."""
    compiler = HostCompiler("/usr/bin/cc", "cc 1", "11")
    lowerer = Lowerer("0.27.0", "0.1", "22")
    monkeypatch.setattr(toolchain, "probe_host_compiler", lambda path: compiler)
    monkeypatch.setattr(toolchain, "probe_tvm", lambda records: lowerer)
    yield {"compiler": compiler, "lowerer": lowerer}


@fuzz(160, data=st.data())
def test_probes_of_the_toolchain(probes: dict[str, Any], tmp_path: Path, data: Any) -> None:
    path = tmp_path / "toolchain.json"
    if not (kept := tmp_path / "kept.json").exists():
        path.unlink(missing_ok=True)
        chain = toolchain.Toolchain(path, {"PATH": "/usr/bin:/bin"})
        chain.host_compiler("")
        chain.lowerer()
        path.rename(kept)
    content = kept.read_bytes()
    found = drawn(data, changed(content, unsealed_object(content, toolchain.SCHEMA).raw, sealed_with(toolchain.SCHEMA)))
    path.write_bytes(found)
    with write_guard().only(tmp_path):
        chain = toolchain.Toolchain(path, {"PATH": "/usr/bin:/bin"})
        compiler, lowerer = chain.host_compiler(""), chain.lowerer()
    texts = [compiler.version, compiler.identity, lowerer.tvm, lowerer.tvm_ffi, lowerer.identity]
    assert all(isinstance(text, str) for text in texts)
    if not is_sealed(found):  # no damage gets into the manifest or into a signature
        assert texts == ["cc 1", "11", "0.27.0", "0.1", "22"]


# ---- measurements, the trace and the report


@fuzz(120, data=st.data())
def test_measurements(built: Project, tmp_path: Path, data: Any) -> None:
    content = (built.folder / STATE / "measurements.json").read_bytes()
    path = tmp_path / "measurements.json"
    document = unsealed_object(content, memory.SCHEMA).raw
    path.write_bytes(drawn(data, changed(content, document, sealed_with(memory.SCHEMA))))
    with write_guard().only(tmp_path):
        measurements = Measurements(path)
        governor = MemoryGovernor(1 << 20, measurements)
        assert 0 <= governor.estimate_kib("link", "scale") < 1 << 50
        assert 0 <= governor.estimate_kib("nvcc", "other") < 1 << 50
        governor.learn("link", "scale", 5, 1.0, 1.0)
        governor.save()
        assert Measurements(path).find("link", "scale") is not None


@fuzz(120, data=st.data())
def test_traces(built: Project, tmp_path: Path, data: Any) -> None:
    content = (built.folder / "build/trace.json").read_bytes()
    path = tmp_path / "trace.json"
    path.write_bytes(drawn(data, changed(content, json.loads(content), lambda text: text)))
    with write_guard().only(tmp_path):
        try:
            run = read_trace(path)
        except KernelwrightError as error:
            require_readable(error, placed=False)
            assert str(path) in str(error)
        else:
            assert all(span.start <= span.end for span in run.spans)


@pytest.fixture(scope="session")
def tuning_result(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    points = [{"block_m": size, "vector": vector} for size in (64, 32) for vector in (True, False)]
    measured = tuple(CandidateResult(n, 9.0 + n, 9.0, 1 + n / 9, 0.01, 5, 8.0, (900, 1000)) for n in range(3))
    sizes = tuple(SizeResult({"m": m, "k": 8}, m % 3, 9.0, measured) for m in (1, 64, 512))
    rules = (Rule(points[1], 64), Rule(points[0]))
    failure = Failure(3, "block_m-32", "too large", "build/tune/gemm/failed/block_m-32")
    config = ConfigResult({"n": 64}, ("m", "k"), ("m",), rules, tuple(points), sizes, (failure,), ())
    device = TableDevice("llvm", "x86-64-v3", "a device", 2)
    folder = tmp_path_factory.mktemp("result")
    write_result(folder, TuningResult("gemm", device, {"tvm": "1"}, "tuning/gemm.json", (config,)))
    return (folder / "result.json").read_bytes()


@fuzz(160, data=st.data())
def test_results_of_tuning(tuning_result: bytes, tmp_path: Path, data: Any) -> None:
    folder = tmp_path / "build/tune/gemm/cpu"
    folder.mkdir(parents=True, exist_ok=True)
    found = drawn(data, changed(tuning_result, json.loads(tuning_result), lambda text: text))
    (folder / "result.json").write_bytes(found)
    with write_guard().only(tmp_path):
        make_report(tmp_path, tmp_path / "build/report.html")
    page = (tmp_path / "build/report.html").read_text(encoding="utf-8")
    # Either it is shown, or a note says what is wrong.
    assert ("<h2>Tuning</h2>" in page) != ("result.json: " in page)
    assert page.count("</script>") == 2


@fuzz(80, data=st.data())
def test_reports_of_damaged_builds(built: Project, tmp_path: Path, data: Any) -> None:
    build = tmp_path / "project" / "build"
    shutil.rmtree(build, ignore_errors=True)
    (build / "kernels/demo").mkdir(parents=True)
    (build / "demo").mkdir()
    for name in ("trace.json", "demo/manifest.json"):
        content = (built.folder / "build" / name).read_bytes()
        (build / name).write_bytes(drawn(data, st.just(content) | changed(content, json.loads(content), signed)))
    with write_guard().only(tmp_path):
        try:
            make_report(build.parent, build / "report.html")
        except KernelwrightError as error:
            require_readable(error, placed=False)
            assert str(build) in str(error)


def signed(text: bytes) -> bytes:
    """A manifest with that content, and a digest that fits."""
    covered = text.rstrip().removesuffix(b"}").rstrip()
    return covered + b',\n "digest": "' + sha256(covered).encode() + b'"\n}\n'


# ---- what the stages hand to each other


@fuzz(250, data=st.data())
def test_signatures_of_units(signature: dict[str, Any], data: Any) -> None:
    document = drawn(data, restructured(signature))
    with only_our_errors():
        unit = LoweredUnit.from_json(document, "demo/host.o")
        plan = KernelPlan("scale", ("y",), (VariantPlan("default", {}, (unit,)),))
        text = library.emit(plan)["wrapper.c"]
        require_plain_c(text)


@functools.cache
def plain_words() -> re.Pattern[str]:
    return re.compile(r'"(?:[^"\\\n]|\\.)*"|/\*.*?\*/', re.S)


def require_plain_c(text: str) -> None:
    """No name in a signature can bring other code into the wrapper: outside of strings and comments all is simple."""
    rest = plain_words().sub("", text)
    assert rest.isascii() and not re.search(r"system|\"|'|`|\\|@|\$", rest), rest
    text.encode()


USAGE = {
    "schema": 1,
    "arch": "sm_80",
    "kernels": {
        "main_kernel": {
            "registers": 32,
            "stack_bytes": 0,
            "spill_store_bytes": 4,
            "spill_load_bytes": 0,
            "shared_bytes": 0,
            "constant_bytes": 380,
        }
    },
}


@fuzz(120, data=st.data())
def test_usage_of_resources(tmp_path: Path, data: Any) -> None:
    content = json.dumps(USAGE, indent=1).encode()
    path = tmp_path / "sm_80.json"
    path.write_bytes(drawn(data, changed(content, USAGE, lambda text: text)))
    with write_guard().only(tmp_path):
        try:
            usage = read_usage(path)
            check_limits("f", "default", "sm_80", usage, 255, 0, discovery.Where("f"))
        except KernelwrightError as error:
            require_readable(error, placed=False)
