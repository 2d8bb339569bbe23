"""The client of the remote cache: what it does to the build when the store does what it should not."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import threading
import time
import zlib
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from kernelwright.commands.cache import run_shared
from kernelwright.core.errors import SettingsError
from kernelwright.define.settings import Settings
from kernelwright.state import layers, remote_client, remote_store
from kernelwright.state.cache import BuildCache
from kernelwright.state.entry import ANSWER, Wanted, entry_key, entry_with, key_of
from kernelwright.state.remote_bazel import action_result, digest_in
from kernelwright.state.remote_client import RemoteCache, place_of
from kernelwright.state.remote_entries import Compressed, send_list
from kernelwright.state.remote_objects import SIGNING_KEY, Seal, decompressed, new_keys
from kernelwright.state.remote_opening import open_remote

from remote.machines import FILES, KEY, OTHER, Machine, fill, machine
from remote.servers import Faulty, faulty, reply, status

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'kernelwright[remote]'")


@pytest.fixture
def server() -> Iterator[Faulty]:
    with faulty() as started:
        yield started


def test_nothing_is_asked_before_it_is_missing_and_what_came_is_kept_here(tmp_path: Path, server: Faulty) -> None:
    later = {"helper.py": "now"}
    with machine(tmp_path / "one", server.address, remote_mode="read") as one:
        one.store(later=later)
        assert one.fetched(current=later.__getitem__) == FILES
    assert not server.asked, "who only reads writes nothing"
    for number in range(4):
        fill(tmp_path / str(number), server.address, later)
    server.asked.clear()
    with machine(tmp_path / "two", server.address) as two:
        assert two.fetched(current=later.__getitem__) == FILES == two.fetched(current=later.__getitem__)
        assert (two.remote.counts.hits, two.remote.counts.misses, two.cache.counts.hits) == (2, 0, 1)
        two.store(later=later)
    assert len(server.objects) == 2 and [asked[:4] for asked in server.asked[:2]] == ["GET "] * 2
    assert two.remote.counts.written == 0 and not two.said, "what exists is no failure"


def test_damage_is_said_once_and_counted(tmp_path: Path, server: Faulty) -> None:
    for key in (KEY, OTHER):
        fill(tmp_path / key, server.address, key=key)
    first, second = server.objects
    server.objects = {first: server.objects[second], second: server.objects[first]}
    with machine(tmp_path / "two", server.address, remote_mode="read") as reader:
        assert reader.fetched() is None and reader.fetched(OTHER) is None
        assert len(reader.said) == 1 and "damaged object, which counts as a miss" in reader.said[0]
        assert "an entry of another key" in reader.said[0] and not list((reader.folder / "cache").glob("??/*"))
    assert reader.said[1:] == ["kernelwright: 2 objects of the remote cache were damaged"]


@pytest.mark.parametrize(
    ("address", "mode", "message"),
    [
        ("nowhere/shared", "read", "there is no folder {top}/nowhere/shared; mount or make it, or mend remote_cache"),
        ("file", "read", "is no folder"),
        ("file", "read-write", "is no folder"),
        (300 * "x", "read", "cannot be used: File name too long"),
    ],
)
def test_a_folder_that_cannot_be_used_is_said_once(tmp_path: Path, address: str, mode: str, message: str) -> None:
    said: list[str] = []
    (tmp_path / "file").write_text("somebody's")
    assert open_remote(Settings(remote_cache=address, remote_mode=mode), tmp_path, {}, said.append) is None
    assert len(said) == 1 and message.format(top=tmp_path) in said[0]
    assert (tmp_path / "file").read_text() == "somebody's" and len(list(tmp_path.iterdir())) == 1


def test_objects_of_a_folder_that_may_not_be_read_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of a writer whose umask lets nobody else read them. The tests may run as root, who reads all."""
    fill(tmp_path / "one", str(tmp_path / "shared"))

    def refuse(path: object, *options: object, **more: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with machine(tmp_path / "two", str(tmp_path / "shared")) as reader:
        monkeypatch.setattr(remote_store, "read_record", refuse)
        assert [reader.fetched(key) for key in (KEY, OTHER, KEY)] == [None] * 3
        monkeypatch.setattr(Path, "stat", refuse)
        assert reader.remote.has("ab" * 32) is None
        monkeypatch.undo()
    assert reader.said[0] == (
        "kernelwright: the remote cache is off for this run: Permission denied; the build goes on without it"
    )


def test_an_object_that_unpacks_to_more_than_any_entry_is_a_miss(tmp_path, server, monkeypatch):
    fill(tmp_path / "one", server.address)
    monkeypatch.setattr("kernelwright.state.remote_objects.LARGEST_RECORD", 1000)
    with machine(tmp_path / "two", server.address, remote_mode="read") as reader:
        assert reader.fetched() is None and "larger than any entry" in reader.said[0]


def hang(handler: BaseHTTPRequestHandler) -> bool:
    time.sleep(30)
    return True


def trickle(handler: BaseHTTPRequestHandler) -> bool:
    """Send a byte now and then, each of them in time."""
    handler.send_response(200)
    handler.send_header("Content-Length", "30")
    handler.end_headers()
    with contextlib.suppress(OSError):
        for _ in range(30):
            handler.wfile.write(b"x")
            time.sleep(0.15)
    return True


def die(handler: BaseHTTPRequestHandler) -> bool:
    """Break off in the middle of an object."""
    handler.send_response(200)
    handler.send_header("Content-Length", "10000")
    handler.end_headers()
    handler.wfile.write(b"x" * 100)
    handler.close_connection = True
    return True


def talk_nonsense(handler: BaseHTTPRequestHandler) -> bool:
    handler.wfile.write(b"\0\1nonsense\n\n")
    handler.close_connection = True
    return True


def ask_many(reader: Machine, count: int = 20) -> None:
    """Ask for several stages ahead, and then for each, as a build does."""
    keys = [key_of(str(number), []) for number in range(count)]
    for key in keys:
        reader.cache.fetch_ahead(key, FILES, lambda name: "", lambda found: None)
    for key in keys:
        assert reader.fetched(key) is None


def failing_first() -> Callable[[BaseHTTPRequestHandler], bool]:
    """A server that answers each question when it is asked once more."""
    seen = set[str]()

    def answer(handler: BaseHTTPRequestHandler) -> bool:
        is_new = handler.path not in seen
        seen.add(handler.path)
        return is_new and status(500)(handler)

    return answer


def page(handler: BaseHTTPRequestHandler) -> bool:
    reply(handler, 200, b"<html>log in</html>")
    return True


OFF = ["is off for this run"]
FAULTS = {
    **{str(code): (status(code), 2 * remote_client.MOST_FAILURES, OFF) for code in (500, 503, 429)},
    "dies": (die, 2 * remote_client.MOST_FAILURES, OFF),
    "nonsense": (talk_nonsense, 2 * remote_client.MOST_FAILURES, OFF),
    "401": (status(401), 1, ["401"]),
    "403, which is a miss in S3": (status(403), 20, []),
    "500 now and then": (failing_first(), 40, []),
    "a page for all": (page, remote_client.MOST_DAMAGED, ["damaged object", "off for this run: 10 of its"]),
}
"""How a server fails -> its answer, how often it is asked for 20 stages, and what is said."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_server_is_off_after_three_failures(tmp_path: Path, server: Faulty, name: str) -> None:
    server.answer, asked, said = FAULTS[name]
    with machine(tmp_path / "one", server.address, remote_mode="read-write" if said else "read") as one:
        for number in range(20):
            assert one.fetched(key_of(str(number), [])) is None
        assert len(server.asked) == asked and one.remote.is_off == bool(said)
        if name == "401":
            one.store(key=OTHER)
    assert len(server.asked) == asked, "nothing is written, either"
    assert len(one.said) == len(said) and all(part in line for part, line in zip(said, one.said, strict=True))
    server.answer = lambda handler: False
    one.store()
    assert one.fetched() == FILES, "the build goes on"


def test_a_server_that_is_down_is_off_at_once(tmp_path: Path) -> None:
    with machine(tmp_path / "one", "http://127.0.0.1:1/cache") as one:
        ask_many(one)
        assert one.remote.is_off and len(one.said) == 1 and "nobody answers there" in one.said[0]


@pytest.mark.parametrize(
    ("answer", "answered", "ahead"), [(hang, 0, True), (trickle, 0, True), (hang, 0, False), (trickle, 3, False)]
)
def test_a_server_that_hangs_costs_one_wait(tmp_path, server, monkeypatch, answer, answered, ahead):
    """A build asks many things at once, and some one after the other, because one decides what is asked next."""
    for limit in ("FIRST_READ_S", "READ_S", "WHOLE_S"):
        monkeypatch.setattr(remote_store, limit, 1)
    monkeypatch.setattr(remote_client, "HANGS_S", 0.9)
    server.answer = lambda handler: len(server.asked) > answered and answer(handler)
    with machine(tmp_path / "one", server.address) as one:
        if ahead:
            ask_many(one)
        else:
            assert [one.fetched(key_of(str(number), [])) for number in range(answered + 3)] == [None] * (answered + 3)
        assert one.remote.is_off and len(one.said) == 1 and "does not answer in time" in one.said[0]
    assert len(server.asked) == len(set(server.asked)) <= (20 if ahead else answered + 1)


def test_a_server_that_answers_too_slowly_is_off(tmp_path, server, monkeypatch):
    fill(tmp_path / "two", server.address)
    monkeypatch.setattr(remote_client, "SLOW_S", 0.0)
    monkeypatch.setattr(remote_client, "SLOW_RATE", 1e12)
    with machine(tmp_path / "one", server.address, remote_mode="read") as one:
        assert one.fetched() == FILES, "what has come is used"
        for number in range(10):
            one.fetched(key_of(str(number), []))
        assert "it is too slow" in one.said[0] and one.remote.counts.misses == remote_client.MOST_FAILURES - 1
        assert len(server.asked) == 1 + remote_client.MOST_FAILURES


def large(begin: bytes, size: int, sent: list[int]) -> Callable[[BaseHTTPRequestHandler], bool]:
    """An answer of many bytes; ``sent`` gets how many of them the client has let come."""

    def answer(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", str(size))
        handler.end_headers()
        sent.append(0)
        with contextlib.suppress(OSError):
            for block in [begin.ljust(1 << 20, b"x"), *[b"x" * (1 << 20)] * ((size >> 20) - 1)]:
                handler.wfile.write(block)
                sent[-1] += len(block)
        handler.close_connection = True
        return True

    return answer


def test_of_large_answers_that_are_no_objects_the_begin_is_read(tmp_path: Path, server: Faulty) -> None:
    sent: list[int] = []
    server.answer = large(b"<html>", 200 << 20, sent)
    with machine(tmp_path / "one", server.address) as one:
        ask_many(one, 2 * remote_client.MOST_DAMAGED)
        assert one.remote.is_off and "objects are damaged" in one.said[-1]
    assert max(sent) < 32 << 20, "what the system holds on the way"


def test_a_server_with_much_damage_is_off_before_there_are_many_of_it(tmp_path, server, monkeypatch):
    monkeypatch.setattr(remote_client, "MOST_DAMAGED_BYTES", 3 << 20)
    server.answer = large(zlib.compress(b"")[:2], 2 << 20, [])
    with machine(tmp_path / "one", server.address) as one:
        assert [one.fetched(key_of(str(number), [])) for number in range(5)] == [None] * 5
        assert len(server.asked) == 2 and "off for this run: 2 of its objects are damaged" in one.said[-1]


def test_a_token_does_not_follow_to_another_server(tmp_path: Path, server: Faulty) -> None:
    tokens = []

    def redirect(handler: BaseHTTPRequestHandler) -> bool:
        tokens.append(handler.headers.get("Authorization"))
        handler.send_response(302)
        handler.send_header("Location", f"{other.address}/v1/x")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    with faulty() as other, machine(tmp_path / "one", server.address, KERNELWRIGHT_REMOTE_TOKEN="s3cret") as one:
        server.answer = redirect
        other.answer = lambda handler: tokens.append(handler.headers.get("Authorization")) or False
        assert one.fetched() is None
    assert tokens == ["Bearer s3cret", None]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_what_stays_on_the_machine_goes_to_no_proxy(tmp_path, server, monkeypatch, host):
    address, token = server.address.replace("127.0.0.1", host), {"KERNELWRIGHT_REMOTE_TOKEN": "s3cret"}
    with faulty() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        fill(tmp_path / "one", address, **token)
        with machine(tmp_path / "two", address, remote_mode="read", **token) as reader:
            assert reader.fetched() == FILES
        assert not proxy.asked


@pytest.mark.parametrize("code", [403, 507, 500])
def test_a_store_that_takes_nothing_is_read_on(tmp_path: Path, server: Faulty, code: int) -> None:
    fill(tmp_path / "two", server.address)
    server.answer = lambda handler: handler.command == "PUT" and status(code)(handler)
    with machine(tmp_path / "one", server.address) as one:
        for number in range(30):
            one.store(key=key_of(str(number), []))
        assert one.fetched() == FILES
    writes = [line for line in server.asked if line.startswith("PUT")][1:]
    most = 2 * (
        remote_client.MOST_FAILURES + remote_client.WRITERS
    )  # all writers may be at it when the last failure counts
    assert len(writes) <= most < 2 * 30, "it was not asked again and again"
    assert len(one.said) == 1 and ("403" if code == 403 else str(code)) in one.said[0]


def test_the_end_does_not_wait_for_a_server_that_takes_its_time(tmp_path: Path, server: Faulty) -> None:
    slow = threading.Event()
    server.answer = lambda handler: bool(handler.command == "PUT" and slow.wait(1))
    one = Machine(tmp_path, server.address)
    for number in range(200):
        one.store(key=key_of(str(number), []))
    one.remote.close(0.1)
    slow.set()
    assert any("were not written to the remote cache" in line for line in one.said), one.said
    assert len(server.asked) < 100


def test_a_full_disk_here_does_not_lose_what_came(tmp_path: Path, server: Faulty) -> None:
    fill(tmp_path / "two", server.address)
    with machine(tmp_path / "one", server.address, remote_mode="read") as one:
        (one.folder / "cache").write_text("no folder can be made here")
        one.cache.fetch_ahead(KEY, FILES, lambda name: "", lambda found: None)
        assert one.fetched() == FILES and one.cache.problem is not None
        assert one.fetched() == FILES, "asked again, and not kept either"


def test_what_is_asked_ahead_is_asked_once(tmp_path: Path, server: Faulty) -> None:
    fill(tmp_path / "two", server.address)
    server.asked.clear()
    came = threading.Event()
    with machine(tmp_path / "one", server.address, remote_mode="read") as one:
        one.cache.fetch_ahead(KEY, FILES, lambda name: "", lambda found: came.set())
        one.cache.fetch_ahead(OTHER, FILES, lambda name: "", lambda found: came.clear())
        assert one.fetched() == FILES and one.fetched(OTHER) is None and one.fetched() == FILES
        assert came.is_set() and len(server.asked) == 2


def test_what_was_asked_ahead_counts_only_as_long_as_it_fits(tmp_path: Path, server: Faulty) -> None:
    fill(tmp_path / "now", server.address, {"helper.py": "now"})
    other = {**FILES, "b.json": b"later"}
    fill(tmp_path / "later", server.address, {"helper.py": "later"}, other)
    came = threading.Event()
    with machine(tmp_path / "one", server.address, remote_mode="read") as one:
        one.cache.fetch_ahead(KEY, FILES, lambda name: "now", lambda found: came.set())
        assert came.wait(60) and one.fetched(current=lambda name: "later") == other


def test_an_entry_that_is_removed_here_after_it_was_found_ahead_is_asked_for_again(tmp_path, server):
    fill(tmp_path / "other", server.address)
    came = threading.Event()
    with machine(tmp_path / "one", server.address, remote_mode="read") as one:
        one.store()
        one.cache.fetch_ahead(KEY, list(FILES), lambda name: "", lambda found: came.set())
        assert came.wait(60) and not any(asked.startswith("GET") for asked in server.asked)
        shutil.rmtree(tmp_path / "one/cache")
        assert one.fetched() == FILES


def test_nobody_waits_for_a_cache_that_went_off_before_it_was_asked(tmp_path: Path, server: Faulty) -> None:
    server.answer = status(401)
    found: list[object] = []
    with machine(tmp_path / "one", server.address) as one:

        def wanted() -> Iterator[tuple[str, Wanted, Callable[[str], str]]]:
            yield KEY, Wanted(frozenset(FILES)), lambda name: ""
            one.fetched(OTHER)

        one.cache.look_ahead(wanted())
        assert one.remote.is_off
        asking = threading.Thread(target=lambda: found.append(one.fetched()), daemon=True)
        asking.start()
        asking.join(20)
    assert found == [None]


def test_a_push_leaves_nothing_out_or_says_so(tmp_path, server, monkeypatch, capsys):
    monkeypatch.setattr(remote_client, "MOST_WAITING", 2)
    monkeypatch.setattr(remote_client, "WRITERS", 1)
    monkeypatch.setenv("KERNELWRIGHT_REMOTE_CACHE", server.address)
    monkeypatch.chdir(tmp_path)
    one = Machine(tmp_path, str(tmp_path / "other"))
    one.cache = BuildCache(tmp_path / Settings().cache_dir, 1 << 30, owned=True)
    for number in range(30):
        one.store(key=key_of(str(number), []))
    failing: list[str] = []

    def one_fails(handler: BaseHTTPRequestHandler) -> bool:
        if handler.command == "PUT" and handler.path in (failing or [handler.path]):
            failing.append(handler.path)
            return status(507)(handler)
        return False

    server.answer = one_fails
    assert run_shared(Namespace(action="push")) == 1 and "push again" in capsys.readouterr().err
    assert len(set(failing)) == 1 and len(server.objects) == 29
    server.answer = lambda handler: False
    assert run_shared(Namespace(action="push")) == 0 and len(server.objects) == 30
    said = capsys.readouterr()
    assert said.out == "1 entries are new in the remote cache, 0.0 MB\n" and "push again" not in said.err
    server.answer = lambda handler: reply(handler, 200, b"<html>log in</html>") is None
    with pytest.raises(SettingsError, match="is no store"):
        run_shared(Namespace(action="push"))


def test_a_number_of_a_result_has_64_bits() -> None:
    result = action_result("a" * 64, 1 << 63)
    assert digest_in(result) == "a" * 64
    with pytest.raises(remote_store.Unreachable, match="no ActionResult"):
        digest_in(result + b"\x18" + b"\x80" * 10 + b"\x01")


def test_a_push_of_no_build_cache_is_an_error(tmp_path: Path, server: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as in a job that has another working folder than it should."""
    monkeypatch.setenv("KERNELWRIGHT_REMOTE_CACHE", server.address)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="there is no build cache build/"):
        run_shared(Namespace(action="push"))
    assert not server.asked


def test_a_push_writes_contents_that_a_server_of_bazel_has_removed(tmp_path: Path, server: Faulty) -> None:
    """Such a server removes what was not read for long, and results and contents by themselves."""
    fill(tmp_path / "one", server.address, remote_layout="bazel")
    (content,) = (path for path in server.objects if "/cas/" in path)
    whole = dict(server.objects)
    del server.objects[content]
    with machine(tmp_path / "one", server.address, remote_layout="bazel") as one:
        one.cache.push(one.remote)
    assert server.objects == whole
    with machine(tmp_path / "one", server.address, remote_layout="bazel") as one:
        server.asked.clear()
        one.cache.push(one.remote)
    assert not [asked for asked in server.asked if asked.startswith("PUT")]


def test_answers_travel_with_the_files_that_they_refer_to(tmp_path: Path, server: Faulty) -> None:
    with machine(tmp_path / "one", server.address) as one:
        one.store()
        entry = entry_key(KEY, {})
        one.cache.remember(["what"], {"answer": 42}, {"x": "1"}, refers={entry: [*FILES]})
        one.cache.remember(["here"], {"answer": 43}, {}, here=True)
        one.cache.remember(["gone"], {"answer": 44}, {}, refers={"0" * 64: [*FILES]})
    with machine(tmp_path / "two", server.address, remote_mode="read") as two:
        found = two.cache.recall_with_files(["what"], lambda name: "1")
        assert found is not None and found[0] == {"answer": 42}
        assert found[1] == {f"{entry}-{name}": data for name, data in FILES.items()}
        assert two.cache.recall(["what"], lambda name: "2") is None
        asked = len(server.asked)
        assert two.cache.recall(["here"], lambda name: "", here=True) is None and len(server.asked) == asked
        assert two.cache.recall(["gone"], lambda name: "") is None


def test_what_many_answers_need_is_sent_once_and_asked_for_once(tmp_path: Path, server: Faulty) -> None:
    numbers = range(5)
    with machine(tmp_path / "one", "shared") as one:
        one.store()  # before there was this remote cache
    with machine(tmp_path / "one", server.address) as one:
        entry = entry_key(KEY, {})
        for number in numbers:
            one.cache.remember(["what", number], {"answer": number}, {}, needs=[entry])
    assert len(server.objects) == 6 and sum(place_of(entry) in asked for asked in server.asked) == 2
    server.asked.clear()
    with machine(tmp_path / "two", server.address, remote_mode="read") as two:
        assert two.cache.recall_with_files(["what", 1], lambda name: "")[1] == {}  # type: ignore[index]
        assert two.cache.contents(entry, FILES) is None
        assert two.cache.contents(entry, FILES, far=True) == FILES
        assert two.cache.contents(entry, FILES) == FILES, "it is here now"
        assert [two.cache.contents("0" * 64, FILES, far=True) for _ in numbers] == [None] * 5
    assert len(server.asked) == 3


def has_answer(folder: Path, address: str) -> None:
    """Have a machine put an answer into the remote cache that depends on something."""
    with machine(folder, address) as one:
        one.cache.remember(["what"], {"answer": 42}, {"x": "1"})


def arrived(two: Machine) -> Compressed:
    """The answer of :func:`has_answer`, as it came to a machine that asked ahead."""
    two.cache.recall_compressed_ahead([["what"]], lambda name: "1")
    compressed = two.cache.take_compressed(["what"])
    assert compressed is not None
    return compressed


@pytest.mark.parametrize(
    ("limit", "room"), [("MOST_HELD", 1 << 20), ("MOST_HELD", 0), ("MOST_PASSED", 0)], ids=["small", "no room", "large"]
)
@pytest.mark.parametrize("unpacks", ["this process", "another one"])
def test_an_answer_that_came_ahead_is_unpacked_by_whoever_needs_it(tmp_path, server, monkeypatch, limit, room, unpacks):
    monkeypatch.setattr(layers, limit, room)
    has_answer(tmp_path / "one", server.address)
    server.asked.clear()
    with machine(tmp_path / "two", server.address, remote_mode="read") as two:
        two.cache.recall_compressed_ahead([["what"], ["unknown"]], lambda name: "1")
        if unpacks == "this process":
            found = two.cache.recall(["what"], lambda name: "1")
        else:
            compressed = two.cache.take_compressed(["what"])
            assert two.cache.take_compressed(["what"]) is None, "it is given once"
            other = BuildCache(two.folder / "cache", 0, owned=True)
            if room:
                assert compressed is not None and not list(other.entries()), "this process has kept nothing"
                other.receive(compressed)
            found = other.recall(["what"], lambda name: "1")
            work = other.work_done()
            assert (work.stored, work.counts.hits, other.counts.hits + other.counts.misses) == (room > 0, not room, 0)
            two.cache.note(replace(work, problem="No space left on device"))
            assert two.cache.counts == work.counts and two.cache.problem == "No space left on device"
        assert found is not None and found == {"answer": 42}
        assert two.cache.recall(["unknown"], lambda name: "1") is None and len(server.asked) == 3
    again = BuildCache(two.folder / "cache", 0, owned=True)
    assert again.recall(["what"], lambda name: "2") is None, "what it depends on has changed"
    assert again.recall(["what"], lambda name: "1") is not None and again.counts.hits == 1, "it is here now"


def test_what_was_asked_ahead_is_asked_for_once_whatever_becomes_of_it(tmp_path: Path, server: Faulty) -> None:
    has_answer(tmp_path / "one", server.address)
    question, current = ["what"], lambda name: "1"
    with machine(tmp_path / "unused", server.address, remote_mode="read") as two:
        compressed = arrived(two)
        server.asked.clear()
        two.cache.give_back(compressed)
        assert two.cache.recall(question, current) is not None and not server.asked and two.cache._ahead.held == 0
        two.cache.recall_compressed_ahead([question], current)
        assert two.cache.take_compressed(question) is None and not server.asked, "it is here"
        (answer,) = (path for _, _, path in two.cache.entries() if b"lists" not in path.read_bytes())
        answer.write_bytes(answer.read_bytes()[:-1])
        two.cache.recall_compressed_ahead([question], current)
        assert two.cache.recall(question, current) is not None and len(server.asked) == 2, "what was here was damaged"
    with machine(tmp_path / "kept", server.address, remote_mode="read") as two:
        compressed = arrived(two)
        BuildCache(two.folder / "cache", 0, owned=True).receive(compressed)
        two.cache.give_back(compressed)
        assert two.cache._ahead.held == 0, "another process has kept it"
        server.asked.clear()
        assert two.cache.recall(question, current) is not None and not server.asked and two.cache.counts.hits == 1
        two.cache.recall_compressed_ahead([["nobody"]], current)
        assert two.cache.take_compressed(["nobody"]) is None
        assert two.cache.recall(["nobody"], current) is None and len(server.asked) == 1


@pytest.mark.parametrize("wrong", ["cut off", "it says too much", "no answer"])
def test_an_answer_that_came_ahead_is_checked_by_whoever_unpacks_it(tmp_path: Path, server: Faulty, wrong: str) -> None:
    has_answer(tmp_path / "one", server.address)
    _, path = sorted(server.objects, key=lambda path: len(server.objects[path]))
    name, more = path.rpartition("/")[2], {"needs": ["0" * 64]} if wrong == "it says too much" else {}
    files = {"a.cubin" if wrong == "no answer" else ANSWER: b'{"answer":43}'}
    well = server.objects[path]
    server.objects[path] = well[:-5] if wrong == "cut off" else Seal().packed(name, entry_with(name, files, more))
    with machine(tmp_path / "two", server.address, remote_mode="read") as two:
        compressed = arrived(two)
        other = BuildCache(two.folder / "cache", 0, owned=True)
        assert not two.said
        with pytest.raises(ValueError):
            other.receive(compressed)
        assert other.recall(["what"], lambda name: "1") is None and not list(other.entries())
        two.cache.give_back(compressed)
        server.asked.clear()
        assert two.cache.recall(["what"], lambda name: "1") is None and not list(two.cache.entries())
        assert len(two.said) == 1 and "damaged" in two.said[0] and not server.asked, "it is not asked for again"
        assert (two.remote.counts.hits, two.remote.counts.misses) == (1, 1), "the list was right"


def test_a_large_answer_that_cannot_be_kept_is_held(tmp_path, server, monkeypatch):
    monkeypatch.setattr(layers, "MOST_PASSED", 0)
    has_answer(tmp_path / "one", server.address)
    with machine(tmp_path / "two", server.address, remote_mode="read") as two:
        (two.folder / "cache").write_text("no folder can be made here")
        two.cache.recall_compressed_ahead([["what"]], lambda name: "1")
        assert two.cache.take_compressed(["what"]) is None
        server.asked.clear()
        assert two.cache.recall(["what"], lambda name: "1") is not None and not server.asked


def test_the_end_waits_for_a_request_however_often_it_is_interrupted(tmp_path: Path, server: Faulty) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    inside, raised = list[int](), list[int]()

    def request() -> None:
        begun.set()
        go_on.wait(60)
        ended.set()

    def on_interrupt(number: int, frame: object) -> None:
        if inside:
            raised.append(inside.pop())
            raise KeyboardInterrupt

    def interrupt() -> None:
        while len(raised) < 3 and not one.remote.is_closed:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        go_on.set()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        with machine(tmp_path / "one", server.address) as one:
            one.remote.write_behind(request)
            assert begun.wait(60)
            interrupting = threading.Thread(target=interrupt)
            interrupting.start()
            while not one.remote.is_closed:
                with contextlib.suppress(KeyboardInterrupt):
                    inside.append(1)
                    one.remote.close(0)
                    inside.clear()
            inside.clear()
            waited = ended.is_set()
            interrupting.join()
            assert waited and len(raised) == 3
            one.remote.ask_ahead([pytest.fail])  # what comes too late is left out
    finally:
        signal.signal(signal.SIGINT, before)


def test_whoever_waits_for_an_answer_is_told_whatever_goes_wrong(tmp_path, server, monkeypatch):
    shown: list[object] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    has_answer(tmp_path / "one", server.address)

    def fail(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    with machine(tmp_path / "two", server.address, remote_mode="read") as two:
        two.remote.ask_ahead([fail] * 2 * remote_client.READERS)
        two.cache.recall_compressed_ahead([["what"]], lambda name: "1")
        found: list[object] = []
        asking = threading.Thread(target=lambda: found.append(two.cache.take_compressed(["what"])), daemon=True)
        asking.start()
        asking.join(20)
        assert len(found) == 1 and found[0] is not None and len(shown) == 2 * remote_client.READERS
        with monkeypatch.context() as patched:
            patched.setattr(Path, "stat", fail)
            assert not two.cache.has(KEY, lambda name: ""), "what cannot be told is not there"


class Weighed:
    """A store whose objects have sizes only, and that knows how much of them is in the memory."""

    def __init__(self, *sizes: int) -> None:
        self.sizes, self.lock = sizes, threading.Lock()
        self.there, self.most, self.read = 0, 0, list[int]()

    def get(self, name: str, may_read: remote_store.MayRead) -> bytes | None:
        size = self.sizes[int(name.rpartition("/")[2])]
        if not may_read(size):
            raise remote_store.NoRoomError(size)
        with self.lock:
            self.read.append(size)
            self.there += size
            self.most = max(self.most, self.there)
        time.sleep(0.001)  # others may come meanwhile
        return Seal().packed("", b"entry")

    def ask(self, remote: RemoteCache, number: int) -> None:
        if remote.get(str(number)) is not None:
            with self.lock:
                self.there -= self.sizes[number]

    put = has = None


def test_large_answers_together_have_no_more_bytes_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_client, "ROOM", 100)
    monkeypatch.setattr(remote_client, "most_expected", lambda size: 0)
    monkeypatch.setattr(remote_client, "decompressed", lambda data, limit: decompressed(data))
    sizes = [30, 70, 100, 250, 10, 60] * 8
    weighed = Weighed(*sizes)
    remote = RemoteCache(weighed, Seal(), False, pytest.fail)
    remote.ask_ahead(partial(weighed.ask, remote, number) for number in range(len(sizes)))
    while len(weighed.read) < len(sizes) or weighed.there:
        time.sleep(0.001)
    remote.close(0)
    assert weighed.most == 250 and sorted(weighed.read) == sorted(sizes)


def test_the_end_of_a_build_ends_the_wait_for_room() -> None:
    remote, begun, found = (
        RemoteCache(Weighed(remote_client.ROOM), Seal(), False, pytest.fail),
        threading.Event(),
        list[object](),
    )

    def ask() -> None:
        begun.set()
        found.append(remote.get("0"))

    with remote.room.turn():
        assert remote.room.take(1)
        remote.ask_ahead([ask])
        assert begun.wait(60)
        remote.close(0)
    assert found == [None] and remote.is_closed


@pytest.mark.parametrize("kind", ["folder", "http"])
def test_where_there_is_hardly_any_room_everything_comes_all_the_same(tmp_path, server, monkeypatch, kind):
    address = server.address if kind == "http" else str(tmp_path / "shared")
    files = {**FILES, "a.cubin": bytes(2 << 20)}  # of which zlib makes 2 kB
    fill(tmp_path / "one", address, {"helper.py": ""}, files)
    has_answer(tmp_path / "one", address)
    monkeypatch.setattr(remote_client, "ROOM", 1)
    monkeypatch.setattr(remote_store, "SMALL", 10)
    refused, plain = list[int](), remote_store.NoRoomError
    monkeypatch.setattr(remote_store, "NoRoomError", lambda size: refused.append(size) or plain(size))
    with machine(tmp_path / "two", address, remote_mode="read") as two:
        two.cache.recall_compressed_ahead([["what"]], lambda name: "1")
        two.cache.fetch_ahead(KEY, FILES, lambda name: "", lambda found: None)
        assert two.fetched() == files and two.cache.recall(["what"], lambda name: "1") is not None
        assert not two.said
    assert kind == "folder" or refused, "no more is read ahead than there is room for; a folder is read when it is time"


def test_names_in_an_entry_lead_to_no_other_file(tmp_path: Path, server: Faulty) -> None:
    mine = tmp_path / "mine"
    mine.write_text("not an entry")
    strange = f"../../../{tmp_path.name}/mine"
    with machine(tmp_path / "one", server.address) as one:
        (tmp_path / "one/cache/..").mkdir(parents=True, exist_ok=True)
        one.cache.remember(["a"], {}, {}, refers={strange: [*FILES]})
        one.cache.remember(["b"], {}, {}, needs=[strange])
    assert mine.exists() and not server.objects


@pytest.mark.parametrize("more", [{"here": True}, {"refers": {"0" * 64: [*FILES]}}, {"needs": ["0" * 64]}, {"of": KEY}])
def test_an_object_says_nothing_that_only_a_machine_may_say(tmp_path, server, more):
    with machine(tmp_path / "one", server.address) as one:
        name = entry_key(KEY, {})
        one.remote.put(name, entry_with(name, FILES, more))
    with machine(tmp_path / "two", server.address, remote_mode="read") as two:
        assert two.fetched() is None and "damaged object" in two.said[0]


def test_what_no_other_machine_may_have_is_neither_sent_nor_asked_for(tmp_path: Path, server: Faulty) -> None:
    with machine(tmp_path / "one", server.address) as one:
        one.cache.store(KEY, one.written(), [*FILES], {}, here=True)
        mixed, key = {"a.h": "1", "/home/me/b.h": "2"}, "c" * 64
        one.store(key=key, later=mixed)
        one.cache.push(one.remote)
        front = BuildCache(tmp_path / "front", 1 << 30, behind=lambda: one.cache, remote=lambda: one.remote)
        (tmp_path / "out").mkdir()
        assert front.fetch(KEY, tmp_path / "out", FILES, lambda name: "", here=True) == {}
        assert front.fetch(key, tmp_path / "out", FILES, mixed.__getitem__) == mixed
        assert front.fetch(OTHER, tmp_path / "out", FILES, lambda name: "", here=True) is None
        front.push(one.remote)
    assert server.objects == {} and not [asked for asked in server.asked if asked[0] == "PUT"]


def test_signatures_count_if_a_key_is_set(tmp_path: Path, server: Faulty) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'kernelwright[signed]'")
    (public, private), (strange, _) = new_keys(), new_keys()
    fill(tmp_path / "one", server.address, remote_key=public, **{SIGNING_KEY: private})
    with machine(tmp_path / "two", server.address, remote_mode="read", remote_key=public) as reader:
        assert reader.fetched() == FILES and not reader.said
    with machine(tmp_path / "three", server.address, remote_mode="read") as careless:
        assert careless.fetched() == FILES, "without a key signatures do not count"
    with machine(tmp_path / "four", server.address, remote_mode="read", remote_key=strange) as reader:
        assert reader.fetched() is None and "not signed with the key of remote_key" in reader.said[0]
    ((path, signed),) = server.objects.items()
    entry = decompressed(Seal().checked("", signed))
    name = path.rpartition("/")[2]
    for forged in (Seal().packed(name, entry), Seal(lambda text: b"0" * 64).packed(name, entry), signed[:40]):
        server.objects[path] = forged
        with machine(tmp_path / "five", server.address, remote_mode="read", remote_key=public) as reader:
            assert reader.fetched() is None and "not signed" in reader.said[0]
    with machine(tmp_path / "six", server.address, remote_key=public) as unable:
        unable.store(key=OTHER)
    assert len(server.objects) == 1 and SIGNING_KEY in unable.said[0], "nothing is written that nobody would take"


def test_a_signature_is_that_of_one_name(tmp_path: Path) -> None:
    seen = []
    seal = Seal(lambda text: b"s" * 64, lambda signature, text: seen.append(text) is None)
    assert decompressed(seal.checked("name", seal.packed("name", b"entry"))) == b"entry"
    assert seen[0].startswith(b"name")


def test_what_depends_on_a_file_that_others_cannot_name_is_not_sent(server: Faulty, tmp_path: Path) -> None:
    writer, later = Machine(tmp_path / "writer", server.address), {"kernels/a.py": "1", "/home/me/table.json": "2"}
    writer.store(later=later)
    front = BuildCache(tmp_path / "front", 1 << 30, behind=lambda: writer.cache, remote=lambda: writer.remote)
    (tmp_path / "taken").mkdir()
    assert front.fetch(KEY, tmp_path / "taken", FILES, later.__getitem__) == later
    front.push(writer.remote)
    writer.remote.close(10)
    assert server.objects == {}
    assert writer.fetched(current=later.__getitem__)


def test_no_list_of_others_makes_us_look_at_what_is_not_theirs(server, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN", "secret")
    writer = Machine(tmp_path / "writer", server.address)
    for name in ("/etc/shadow", "../secret", ".git/config", "/environment/TOKEN", "kernels/a.py"):
        send_list(writer.remote, KEY, [name])
        writer.remote.put(
            entry_key(KEY, {name: "1"}), entry_with(entry_key(KEY, {name: "1"}), dict.fromkeys(FILES, b""))
        )
    writer.remote.close(10)
    asked: list[str] = []

    def current(name: str) -> str:
        asked.append(name)
        return "1"

    reader = Machine(tmp_path / "reader", server.address)
    assert reader.fetched(current=current) and asked == ["kernels/a.py"]


def test_there_is_an_end_to_the_names_that_others_make_us_look_at(server, tmp_path, monkeypatch):
    writer = Machine(tmp_path / "writer", server.address)
    for names in (["a"], ["b", "c"], ["d"]):
        send_list(writer.remote, KEY, names)
    asked: list[str] = []
    monkeypatch.setattr("kernelwright.state.remote_entries.MOST_NAMES", 3)
    monkeypatch.setattr("kernelwright.state.layers.MOST_NAMES", 3)
    monkeypatch.setattr("kernelwright.state.entry.MOST_NAMES", 2)
    with machine(tmp_path / "reader", server.address) as reader:
        assert reader.fetched(current=lambda name: asked.append(name) or "1") is None
        assert asked == ["a", "b", "c"] and reader.said == []
        send_list(writer.remote, OTHER, ["a", "b", "c"])
        assert reader.fetched(OTHER) is None and "a list of 3 names, and 2 are the most" in reader.said[0]
    before = {**server.objects}
    writer.store(key=key_of("more", []), later=dict.fromkeys("abcd", "1"))
    writer.remote.close(10)
    assert server.objects == before, "nobody would take it"
