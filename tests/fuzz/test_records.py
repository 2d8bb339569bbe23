"""Files that are read back: whatever they hold, it is what was written, or nothing, or a good error."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import kernelwright.commands.report.page  # noqa: F401 (a first import writes its bytecode, which no reader does)
import pytest
import SCons.Script  # noqa: F401 (the journal needs SCons's globals)
from hypothesis import strategies as st
from kernelwright.backends import sources as library
from kernelwright.backends.plan import KernelPlan, LoweredUnit, VariantPlan
from kernelwright.commands.report import make_report
from kernelwright.core.errors import KernelwrightError, WorkerError
from kernelwright.core.sealed import unsealed
from kernelwright.define.configs import slugs
from kernelwright.define.kernel_options import KernelOptions
from kernelwright.define.record import KernelRecord
from kernelwright.define.space import Choice, variants_of
from kernelwright.define.tuning import Rule, TableDevice, parse_table, table_text
from kernelwright.processes.memory import Measurements, MemoryGovernor
from kernelwright.scons.journal import entry_from_json
from kernelwright.stages import discovery
from kernelwright.stages.selection import KernelSelection
from kernelwright.stages.tuned import choose
from kernelwright.state.cache import BuildCache
from kernelwright.state.journal import FORM, SEPARATOR, Journal
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
from kernelwright.toolchain import probe as toolchain
from kernelwright.toolchain.host_compiler import HostCompiler
from kernelwright.toolchain.kept_headers import KeptHeaders
from kernelwright.toolchain.limits import check_limits, read_usage
from kernelwright.toolchain.trimming import read_headers
from kernelwright.toolchain.tvm import Lowerer
from support.project import Project
from support.sealed_lines import record_in

from .harness import fuzz, only_our_errors, require_readable, write_guard
from .strategies import as_json, damaged, nested, restructured

STATE = "build/.kernelwright"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sealed_bytes(text: bytes) -> bytes:
    """As :func:`kernelwright.core.sealed.sealed`, for any bytes."""
    return b'["%s",%s]\n' % (sha256(text).encode(), text)


def is_sealed(content: bytes) -> bool:
    """Whether a digest fits, so that only the form can tell that something is wrong."""
    try:
        unsealed(content.partition(b"\n")[0] + b"\n")
    except ValueError:
        return False
    return True


def signed(text: bytes) -> bytes:
    """A manifest with that content, and a digest that fits."""
    covered = text.rstrip().removesuffix(b"}").rstrip()
    return covered + b',\n "digest": "' + sha256(covered).encode() + b'"\n}\n'


ODD = [nested(200_000), nested(900), nested(950, '{"a":', "}"), nested(60), "", "null", "{", "9" * 5000]


def changed(content: bytes, document: Any, sealed: Callable[[bytes], bytes]) -> st.SearchStrategy[bytes]:
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
        st.sampled_from(ODD).map(lambda text: sealed(text.encode())),
        st.binary(max_size=40).map(sealed),
    )


def of_record(content: bytes) -> st.SearchStrategy[bytes]:
    """The same for a sealed file. What follows its first line, as in an entry of the cache, stays as it is."""
    line, newline, rest = content.partition(b"\n")
    form, document = record_in(line + newline)
    return changed(content, document, lambda text: sealed_bytes(json.dumps(form).encode() + b"," + text) + rest)


def of_json(content: bytes) -> st.SearchStrategy[bytes]:
    return changed(content, json.loads(content), lambda text: text)


@dataclass(frozen=True)
class Place:
    """Where a reader is tried: a build that no test changes, a folder of its own, and what draws random values."""

    built: Project
    folder: Path
    data: st.DataObject

    def draw(self, values: st.SearchStrategy[Any]) -> Any:
        with write_guard().paused():
            return self.data.draw(values)

    def clear(self, name: str) -> None:
        with write_guard().paused():
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def state(self, name: str) -> bytes:
        return (self.built.folder / STATE / name).read_bytes()

    def put(self, path: str | Path, contents: st.SearchStrategy[bytes]) -> tuple[Path, bytes]:
        """Write something in place of a file; its path, and what it is."""
        found = self.draw(contents)
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(found)
        return file, found


def in_its_folder(*paths: str) -> bool:
    return not any(path.startswith("/") or ".." in path.split("/") for path in paths)


def records_of_definitions(place: Place) -> None:
    class NoPool:
        """In place of workers: a record that is not used is asked for again, and that is all."""

        size = 1

        def call(self, request: Any) -> Any:
            raise WorkerError("no workers here", request.where)

        def close(self) -> None:
            """Nothing to close."""

    top = place.built.folder
    source = next((top / STATE / "discovery").glob("*scale*.record"))
    identity = record_in(source.read_bytes())[1]["identity"]
    place.put(source.name, of_record(source.read_bytes()))
    records, errors = discovery.DefinitionRecords(top, place.folder, identity).discover(
        [top / "kernels/scale.py"], NoPool
    )
    assert len(records) + len(errors) >= 1 and len(records) <= 1
    for kernel in (kernel for made in records for kernel in made.kernels):
        assert re.fullmatch(r"[A-Za-z]\w*", kernel.name, re.A)
        assert all(Path(slug).name == slug and slug.isprintable() for slug in kernel.slugs)
        assert len(set(kernel.slugs)) == len(kernel.slugs) == len(kernel.configs)
    for name in (name for made in records for names in made.later.values() for name in names):
        assert isinstance(name, str)
    for error in errors:
        require_readable(error)


def settled(place: Place) -> None:
    content = place.state("settled/build.demo.json")
    path, _ = place.put("settled.json", of_record(content))
    known = read_settled(path, record_in(content)[1]["key"])
    top = str(place.built.folder)
    for file, kernels in known.of_file.items():
        is_current(top, known.files.get(file) or {})
        assert isinstance(file, str)
        for name, kernel in kernels.items():
            # Files of these names are removed and copied.
            assert re.fullmatch(r"[A-Za-z]\w*", name, re.A)
            is_current(top, kernel.outputs)
            is_current(top, kernel.check_outputs)
            assert isinstance(kernel.stages + kernel.checks, int) and isinstance(kernel.entry, str)
            for target, (source, digest) in kernel.products.items():
                assert isinstance(digest, str) and in_its_folder(target, source)
    assert all(isinstance(note, str) for notes in known.notes.values() for note in notes)
    assert in_its_folder(*known.copies) and all(isinstance(digest, str) for _, digest in known.copies.values())


def cache_entries(place: Place) -> None:
    place.clear("cache")
    files, read = {"a.so": b"library", "b.sh": b"script"}, {"kernels/x.json": "1234"}
    for name, data in files.items():
        place.put(f"made/{name}", st.just(data))
    cache, key, out = BuildCache(place.folder / "cache", 10**6), "ab" + "0" * 62, place.folder / "out"
    cache.store(key, place.folder / "made", [*files], read)
    kind = place.draw(st.sampled_from([b'"lists"', b'"files"']))
    (entry,) = (path for path in (place.folder / "cache").glob("??/*") if kind in path.read_bytes())
    content = entry.read_bytes()
    rest = content.partition(b"\n")[2]
    _, found = place.put(entry, of_record(content))
    place.clear("out")
    out.mkdir()
    asked = []
    later = cache.fetch(key, out, [*files], lambda name: asked.append(name) or "1234")
    got = {path.name: path.read_bytes() for path in out.iterdir()}
    assert got == {} if later is None else got.keys() == files.keys()
    assert all(isinstance(name, str) for name in asked)
    if found == content or (kind == b'"lists"' and later is not None):
        assert got == files
    elif not is_sealed(found) or found[len(found) - len(rest) :] != rest:
        assert later is None
    cache.store(key, place.folder / "made", [*files], read)
    assert cache.fetch(key, out, [*files], lambda name: "1234") == read


def headers(place: Place) -> None:
    place.clear("headers")
    header = Path(__file__)  # what was just written is not kept
    text = f'# 1 "{header}" 1\n#define A 1\n# 1 "device.cu"\nnamespace std {{ int f(int); }}\n'
    kept, key = KeptHeaders(place.folder / "headers", ("nvcc",)), ("compute_80", "#include <a.h>")
    made = kept.of(key, None, lambda: read_headers(text))
    (path,) = (place.folder / "headers").iterdir()
    _, found = place.put(path, of_record(path.read_bytes()))
    again = kept.of(key, None, lambda: read_headers(text))
    if not is_sealed(found):
        assert (again.declarations.own, again.macros) == (made.declarations.own, made.macros)
    assert all(isinstance(part, str) for macro in again.macros.items() for part in macro)
    for one in again.declarations.needed(["f", "std::f"]):
        assert isinstance(one.text, str) and all(isinstance(name, str) for name in one.names)


def framed(name: Any, text: str) -> bytes:
    return sealed_bytes(f"{json.dumps(name)}{SEPARATOR}{text}".encode("utf-8", "surrogatepass"))


@st.composite
def journals(draw: st.DrawFn, content: bytes) -> bytes:
    """A damaged file of the journal, or one whose lines fit their digests and hold something else."""
    if draw(st.booleans()):
        return draw(damaged(content))
    lines = []
    for _, name, body in (json.loads(line) for line in content.decode().splitlines()[1:] if line):
        kind = draw(st.sampled_from(["keep", "body", "body", "name", "text"]))
        if kind == "body":
            lines.append(framed(name, as_json(draw(restructured(body)))))
        elif kind == "name":
            names = ["[]", "{}", "1", "null", '""', '"\\u0000"', '"/etc/passwd"', '"../x"', "x", '"', nested(5000)]
            lines.append(sealed_bytes(f"{draw(st.sampled_from(names))}{SEPARATOR}{{}}".encode()))
        elif kind == "text":
            texts = [nested(5000), "{", "", "null", "[]", "NaN", '"x"', "9" * 5000]
            lines.append(framed(name, draw(st.sampled_from(texts))))
        else:
            lines.append(framed(name, as_json(body)))
    return FORM + b"".join(lines)


def journal(place: Place) -> None:
    top = place.built.folder
    source = place.draw(st.sampled_from(sorted((top / STATE / "journal").glob("*.jsonl"))))
    place.clear("journal")
    place.put(f"journal/{source.name}", journals(source.read_bytes()))
    names = [json.loads(line)[1] for line in source.read_text().splitlines()[1:] if line]
    before = {name: (top / name).stat().st_mtime_ns for name in names}
    found = Journal(place.folder / "journal", top)
    found.writable = True
    for name in names:
        output = found.output(str(top / name))
        assert output is None or (len(output[0]) == 4 and isinstance(output[1], str))
        found.intact(str(top / name))
        for body in found.entries(name.rpartition("/")[0] or ".").values():
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
                entry = entry_from_json(body)
                assert hasattr(entry, "binfo") and hasattr(entry, "ninfo")
    found.close()
    again = Journal(place.folder / "journal", top)
    for name in names:
        assert again.output(str(top / name)) == found.output(str(top / name))
    assert before == {name: (top / name).stat().st_mtime_ns for name in names}


def probes(place: Place) -> None:
    """What compilers said of themselves; asking them costs nothing here."""
    path, expected = place.folder / "toolchain.json", ["cc 1", "11", "0.27.0", "0.1", "22"]

    def told() -> list[str]:
        chain = toolchain.Toolchain(path, {"PATH": "/usr/bin:/bin"})
        compiler, lowerer = chain.host_compiler(""), chain.lowerer()
        return [compiler.version, compiler.identity, lowerer.tvm, lowerer.tvm_ffi, lowerer.identity]

    with pytest.MonkeyPatch.context() as patched:
        compiler, lowerer = HostCompiler("/usr/bin/cc", *expected[:2]), Lowerer(*expected[2:])
        patched.setattr(toolchain, "probe_host_compiler", lambda path: compiler)
        patched.setattr(toolchain, "probe_tvm", lambda records: lowerer)
        path.unlink(missing_ok=True)
        assert told() == expected
        _, found = place.put(path, of_record(path.read_bytes()))
        texts = told()
    assert all(isinstance(text, str) for text in texts)
    assert is_sealed(found) or texts == expected, "no damage gets into the manifest or into a signature"


def measurements(place: Place) -> None:
    path, _ = place.put("measurements.json", of_record(place.state("measurements.json")))
    governor = MemoryGovernor(1 << 20, Measurements(path))
    assert 0 <= governor.estimate_kib("link", "scale") < 1 << 50
    assert 0 <= governor.estimate_kib("nvcc", "other") < 1 << 50
    governor.learn("link", "scale", 5, 1.0, 1.0)
    governor.save()
    assert Measurements(path).find("link", "scale") is not None


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """What is read may be an error that names the file."""
    try:
        yield
    except KernelwrightError as error:
        require_readable(error, placed=False)
        assert str(path) in str(error)


def traces(place: Place) -> None:
    path, _ = place.put("trace.json", of_json((place.built.folder / "build/trace.json").read_bytes()))
    with named(path):
        assert all(span.start <= span.end for span in read_trace(path).spans)


@functools.cache
def a_tuning_result(folder: Path) -> bytes:
    points = [{"block_m": size, "vector": vector} for size in (64, 32) for vector in (True, False)]
    measured = tuple(CandidateResult(n, 9.0 + n, 9.0, 1 + n / 9, 0.01, 5, 8.0, (900, 1000)) for n in range(3))
    sizes = tuple(SizeResult({"m": m, "k": 8}, m % 3, 9.0, measured) for m in (1, 64, 512))
    rules = (Rule(points[1], 64), Rule(points[0]))
    failure = Failure(3, "block_m-32", "too large", "build/tune/gemm/failed/block_m-32")
    config = ConfigResult({"n": 64}, ("m", "k"), points[0], ("m",), rules, tuple(points), sizes, (failure,), ())
    device = TableDevice("llvm", "x86-64-v3", "a device", 2)
    write_result(folder, TuningResult("gemm", device, {"tvm": "1"}, "tuning/gemm.json", (config,)))
    return (folder / "result.json").read_bytes()


def results_of_tuning(place: Place) -> None:
    place.put("build/tune/gemm/cpu/result.json", of_json(a_tuning_result(place.folder / "made")))
    make_report(place.folder, place.folder / "build/report.html")
    page = (place.folder / "build/report.html").read_text(encoding="utf-8")
    # Either it is shown, or a note says what is wrong.
    assert ("<h2>Tuning</h2>" in page) != ("result.json: " in page)
    assert page.count("</script>") == 2


def reports_of_damaged_builds(place: Place) -> None:
    build = place.folder / "project" / "build"
    place.clear("project")
    (build / "kernels/demo").mkdir(parents=True)
    for name in ("trace.json", "demo/manifest.json"):
        content = (place.built.folder / "build" / name).read_bytes()
        place.put(build / name, st.just(content) | changed(content, json.loads(content), signed))
    with named(build):
        make_report(build.parent, build / "report.html")


USAGE = dict.fromkeys(("registers", "stack_bytes", "spill_store_bytes", "spill_load_bytes", "shared_bytes"), 4)
USAGE_FILE = {"schema": 1, "arch": "sm_80", "kernels": {"main_kernel": {**USAGE, "constant_bytes": 380}}}


def usage_of_resources(place: Place) -> None:
    path, _ = place.put("sm_80.json", of_json(json.dumps(USAGE_FILE, indent=1).encode()))
    try:
        check_limits("sm_80", read_usage(path), 255, 0, discovery.Where("f", "default"))
    except KernelwrightError as error:
        require_readable(error, placed=False)


TABLE_NAME = "tuning/gemm.x86-64-v3-cpu-2.json"
TABLE = {
    "schema": 1,
    "kernel": "gemm",
    "device": {"target": "llvm", "arch": "x86-64-v3", "name": "CPU", "count": 2},
    "measured": {"tvm": "0.27.0"},
    "configs": [
        {
            "config": {"n": 1},
            "by": ["m"],
            "rules": [
                {"upto": 64, "tune": {"block": 8}},
                {"upto": 128, "tune": {"block": 16}},
                {"tune": {"block": 32}},
            ],
            "evidence": [{"sizes": {"m": 1}, "tune": {"block": 8}, "us": 1.5, "default_us": 2, "spread": 0.01}],
            "sources": [{"tune": {"block": 8}, "digest": "0123456789abcdef"}],
        },
        {"config": {"n": 2}, "by": [], "rules": [{"tune": {"block": 16}}], "evidence": [], "sources": []},
    ],
}
POINTS = ({"block": 8}, {"block": 16}, {"block": 32})
CHOICES = tuple(Choice({"n": n}, {"llvm": POINTS}) for n in (1, 2))
CONFIGS = tuple(variants_of(CHOICES))
RECORD = KernelRecord(
    *("gemm", "", "k.py:1", CONFIGS, tuple(slugs(CONFIGS))),
    KernelOptions(targets=("llvm",), outputs=("c",)),
    None,
    takes_target=False,
    choices=CHOICES,
)


def tuning_tables(place: Place) -> None:
    """An error with its line, or each size has a variant of the space."""
    content = place.draw(of_json(json.dumps(TABLE, indent=1).encode()))
    with only_our_errors() as errors:
        table = parse_table(content, TABLE_NAME)
    if errors:
        assert re.fullmatch(re.escape(TABLE_NAME) + r":[1-9]\d*", str(errors[0].where.location))
        return
    again = parse_table(table_text(table).encode(), TABLE_NAME)
    assert again == replace(table, configs=again.configs) and table_text(again) == table_text(table)
    chosen = choose(KernelSelection(RECORD, {"llvm": ("x86-64-v3",)}, ("tvm_ffi",), ()), [table]).selection
    assert all(config in CONFIGS for config in chosen.record.configs) and chosen.declared == len(CHOICES)
    for declared, rules in (pair for device in chosen.tables for pair in device.rules.items()):
        of_choice = chosen.record.configs[declared]["n"]
        assert all(chosen.record.configs[number]["n"] == of_choice for _, number in rules.ranges)
        ends = [upto for upto, _ in rules.ranges]
        assert ends[-1] is None and sorted(set(ends[:-1])) == ends[:-1]
        assert rules.choose(dict.fromkeys(rules.by, 10**6)) < len(chosen.record.configs)


READERS = {
    **{"toolchain.json": probes, "discovery/*.record": records_of_definitions, "journal/*.jsonl": journal},
    **{"settled/*.json": settled, "cache/": cache_entries, "headers/*.json": headers},
    **{"measurements.json": measurements, "trace.json": traces, "result.json": results_of_tuning},
    **{"report.html": reports_of_damaged_builds, "<arch>.json": usage_of_resources, "tuning/*.json": tuning_tables},
}
"""File -> what reads it, in which anything may be found, and looks at what it gives."""


@pytest.mark.parametrize("file", READERS)
@fuzz(80, data=st.data())
def test_a_file_that_is_read_back_is_what_was_written_or_nothing_or_a_good_error(built, tmp_path, file, data):
    with write_guard().only(tmp_path):
        READERS[file](Place(built, tmp_path, data))


# ---- what the stages hand to each other


@fuzz(120, data=st.data())
def test_signatures_of_units(signature: dict[str, Any], data: st.DataObject) -> None:
    document = data.draw(restructured(signature))
    with only_our_errors():
        unit = LoweredUnit.from_json(document, "demo/host.o")
        plan = KernelPlan("scale", ("y",), (VariantPlan("default", {}, (unit,)),))
        # No name in a signature can bring other code into the wrapper: outside of strings and comments all is simple.
        text = library.emit(plan)["wrapper.c"]
        rest = re.sub(r'"(?:[^"\\\n]|\\.)*"|/\*.*?\*/', "", text, flags=re.S)
        assert rest.isascii() and not re.search(r"system|\"|'|`|\\|@|\$", rest), rest
        text.encode()
