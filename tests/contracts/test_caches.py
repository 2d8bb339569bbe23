"""What every cache promises: what was put is given back whole or not at all, and never what another one is known by."""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from kernelwright.core.errors import KernelwrightError, SettingsError
from kernelwright.ondemand.kernel_folders import LATER, damage
from kernelwright.ondemand.store import KernelStore
from kernelwright.package.manifest import sealed_document
from kernelwright.runtime.loader import SCHEMA
from kernelwright.state.cache import BuildCache
from kernelwright.state.entry import entry_key
from remote.machines import FILES, KEY, OTHER, machine
from remote.servers import Faulty, faulty
from support.disks import make_read_only, small_disk

Files = Mapping[str, bytes]
OTHERS = {name: data + b"?" for name, data in FILES.items()}
READ = {"helper.py": "now", "other.py": ""}
"""What a stage turned out to read, with its digests; empty: it is not there."""

NONE: Mapping[str, str] = MappingProxyType({})

LIMIT = 1 << 30


class Cache:
    """A cache as several processes, or machines, use it: whatever is put or got, a new one does it.

    ``said`` is what the last one that put something said of a problem.
    """

    replaces = True
    """Whether what is damaged is replaced by what is put."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place, self.said = folder, folder / "cache", ""

    def new_folder(self, files: Files | None = None) -> Path:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        for name, data in (files or {}).items():
            (folder / name).write_bytes(data)
        return folder

    def put(
        self,
        files: Files = FILES,
        key: str = KEY,
        read: Mapping[str, str] = NONE,
        writable: bool = True,
        limit: int = LIMIT,
    ) -> None:
        raise NotImplementedError

    def get(self, key: str = KEY, present: Mapping[str, str] = NONE, writable: bool = True) -> Files | None:
        """What a stage made whose files are like that now."""
        raise NotImplementedError

    def objects(self) -> dict[str, bytes]:
        """All that it consists of."""
        paths = (path for path in self.place.rglob("*") if path.is_file())
        return {
            path.relative_to(self.place).as_posix(): path.read_bytes()
            for path in sorted(paths)
            if path.name not in ("CACHEDIR.TAG", ".gitignore")
        }

    def replace(self, name: str, data: bytes) -> None:
        (self.place / name).unlink(missing_ok=True)
        (self.place / name).write_bytes(data)


class Build(Cache):
    def opened(self, writable: bool = True, limit: int = LIMIT, **more: Any) -> BuildCache:
        return BuildCache(self.place, limit, writable, **more)

    def put(self, files=FILES, key=KEY, read=NONE, writable=True, limit=LIMIT):
        cache = self.opened(writable, limit)
        cache.store(key, self.new_folder(files), list(files), read)
        cache.trim()
        self.said = cache.problem or ""

    def get(self, key=KEY, present=NONE, writable=True):
        return self.fetched(self.opened(writable), key, present)

    def fetched(self, cache: BuildCache, key: str, present: Mapping[str, str]) -> Files | None:
        out = self.new_folder()
        read = cache.fetch(key, out, list(FILES), lambda name: present.get(name, ""))
        found = {path.name: path.read_bytes() for path in out.iterdir()}
        assert (read is None) == (not found) and all(present.get(name, "") == was for name, was in (read or {}).items())
        return found or None


class Behind(Build):
    """The build cache of another project, behind one that has nothing."""

    def get(self, key=KEY, present=NONE, writable=True):
        front = BuildCache(self.new_folder() / "front", LIMIT, behind=lambda: self.opened(writable=False))
        return self.fetched(front, key, present)


class OnDemand(Cache):
    def put(self, files=FILES, key=KEY, read=NONE, writable=True, limit=LIMIT):
        store, entry = KernelStore(self.place, limit, writable), entry_key(key, read)
        texts = {**files, LATER: json.dumps(dict(read)).encode()}
        listed = {name: {"sha256": sha256(text).hexdigest(), "size": len(text)} for name, text in texts.items()}
        texts["manifest.json"] = sealed_document({"schema": SCHEMA, "key": entry, "files": listed}).encode()
        try:
            with store.scratch("scale") as scratch:
                for name, text in texts.items():
                    (scratch / name).write_bytes(text)
                store.publish("scale", key, entry, scratch)
            store.trim()
            self.said = store.problem or ""
        except (OSError, KernelwrightError) as error:
            self.said = str(error)

    def get(self, key=KEY, present=NONE, writable=True):
        store = KernelStore(self.place, LIMIT, writable)
        found = store.find("scale", key, lambda name: present.get(name, ""))
        if found is None or damage(found.folder):
            return None
        return {name: (found.folder / name).read_bytes() for name in FILES}


class Remote(Cache):
    replaces = False
    layout = "plain"

    @property
    def address(self) -> str:
        return str(self.place)

    def put(self, files=FILES, key=KEY, read=NONE, writable=True, limit=LIMIT):
        mode = "read-write" if writable else "read"
        with machine(self.new_folder(), self.address, remote_mode=mode, remote_layout=self.layout) as writer:
            writer.store(files, key, read)
        self.said = "\n".join(writer.said) or "it lacks something" * writer.remote.lacks_something

    def get(self, key=KEY, present=NONE, writable=True):
        if not self.place.exists():
            return None
        with machine(self.new_folder(), self.address, remote_mode="read", remote_layout=self.layout) as reader:
            return reader.fetched(key, lambda name: present.get(name, ""))


class RemoteBazel(Remote):
    layout = "bazel"


class Http(Remote):
    def __init__(self, folder: Path, server: Faulty) -> None:
        super().__init__(folder)
        self.server = server
        self.place.mkdir()

    @property
    def address(self) -> str:
        return self.server.address

    def objects(self) -> dict[str, bytes]:
        return dict(sorted(self.server.objects.items()))

    def replace(self, name: str, data: bytes) -> None:
        self.server.objects[name] = data


LOCAL = {"build": Build, "on demand": OnDemand}
IN_FOLDERS = {**LOCAL, "behind": Behind, "remote": Remote, "remote, Bazel": RemoteBazel}
ALL = {**IN_FOLDERS, "http": Http}


@pytest.fixture(params=ALL.values(), ids=ALL)
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cache]:
    if not issubclass(request.param, Http):
        yield request.param(tmp_path)
        return
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'kernelwright[remote]'")
    with faulty() as server:
        yield request.param(tmp_path, server)


def only(kinds: Mapping[str, type[Cache]]) -> Any:
    return pytest.mark.parametrize("cache", kinds.values(), ids=kinds, indirect=True)


@pytest.mark.parametrize("read", [{}, READ], ids=["nothing more", "files"])
def test_what_was_put_is_given_back_by_its_whole_key_while_all_that_was_read_is_the_same(cache, read):
    assert cache.get(present=read) is None
    cache.put(read=read)
    for key in (KEY[:16] + OTHER[16:], KEY[:-1] + "-", OTHER):
        assert cache.get(key, read) is None
    for name in read:
        assert cache.get(present={**read, name: "later"}) is None
    assert cache.get(present=read) == FILES
    cache.put(read=read)
    assert cache.get(present=read) == FILES and not cache.said


def test_stages_that_read_other_files_on_each_branch_have_their_own(cache: Cache) -> None:
    common = {"helper.py": "of b"}
    branches = [{"helper.py": "of a", "a.py": "1"}, {**common, "b.py": "2"}, {**common, "b.py": "3"}, common, {"c": ""}]
    for number, read in enumerate(branches[:3]):
        cache.put({**FILES, "b.json": b"%d" % number}, read=read)
    for number, read in enumerate(branches[:3]):
        assert cache.get(present=read) == {**FILES, "b.json": b"%d" % number}
    assert [cache.get(present=read) for read in branches[3:]] == [None, None]


def damages(whole: bytes, places: int) -> Iterator[bytes]:
    """What may become of a file: flipped bits and cuts everywhere, more, nothing, zeros, and another text."""
    step = max(1, len(whole) // places)
    for place in {*range(0, len(whole), step), len(whole) - 1} - {-1}:
        yield whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :]
        yield whole[:place]
    yield from (whole + b"x", whole + whole, bytes(len(whole)), b"<html>404</html>", b"[]", whole[::-1])


def test_damage_anywhere_gives_nothing_else_and_what_is_put_again_is_there(cache: Cache) -> None:
    cache.put(read=READ)
    for name, whole in cache.objects().items():
        for damaged in damages(whole, 2 if isinstance(cache, Http) else 12):
            cache.replace(name, damaged)
            assert cache.get(present=READ) in (None, FILES), (name, damaged)
        if cache.replaces:
            cache.put(read=READ)
            assert cache.get(present=READ) == FILES, name
        else:
            cache.replace(name, whole)


def test_what_another_one_made_is_not_given_in_whatever_place_it_is(cache: Cache) -> None:
    cache.put(FILES, KEY)
    ours = cache.objects()
    cache.put(OTHERS, OTHER)
    theirs = {name: data for name, data in cache.objects().items() if name not in ours}
    assert len(ours) == len(theirs) > 0
    whole = {**ours, **theirs}
    swaps = [{one: whole[other]} for one, other in itertools.product(ours, theirs)]
    swaps.append(dict(zip([*ours, *theirs], [*theirs.values(), *ours.values()], strict=True)))
    for swap in swaps:
        for name, data in swap.items():
            cache.replace(name, data)
        assert cache.get(KEY) in (None, FILES) and cache.get(OTHER) in (None, OTHERS)
        for name in swap:
            cache.replace(name, whole[name])
    assert cache.get(KEY) == FILES and cache.get(OTHER) == OTHERS


CHANGES = {"open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.truncate", "os.utime", "os.chmod"}
"""Audit events of what changes files."""


def is_killed(step: int, place: str, act: Callable[[], None]) -> bool:
    """Do something in a child that is killed in front of a change in a folder; whether there were so many changes."""
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 9)
        return status == 9
    changes = itertools.count()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        reads = event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        is_ours = event in CHANGES and str(arguments[0]).startswith((place, "/proc/self/fd/"))
        if is_ours and not reads and next(changes) == step:
            os._exit(9)

    sys.addaudithook(hook)
    try:
        act()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


@only(IN_FOLDERS)
def test_a_writer_that_is_killed_at_any_moment_leaves_all_or_nothing(cache: Cache) -> None:
    cache.put(OTHERS, OTHER)
    for step in itertools.count():
        killed = is_killed(step, str(cache.place), lambda: cache.put(read=READ))
        assert cache.get(present=READ) in (None, FILES) and cache.get(OTHER) == OTHERS
        if not killed:
            break
    assert step > 4 and cache.get(present=READ) == FILES


def test_writers_at_once_leave_what_all_can_read(cache: Cache) -> None:
    branches = [({f"{n % 2}.py": str(n)}, {**FILES, "b.json": b"%d" % n}) for n in range(4)]
    wrong: list[object] = []

    def work(read: dict[str, str], files: Files) -> None:
        for _ in range(1 if isinstance(cache, Http) else 3):
            cache.put(files, read=read)
            cache.put(OTHERS, OTHER)
            wrong.extend(got for got in [cache.get(present=read)] if got not in (None, files))
            wrong.extend(got for got in [cache.get(OTHER)] if got != OTHERS)

    threads = [threading.Thread(target=work, args=branch) for branch in branches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for read, files in branches:  # a list that was lost when two wrote at once is there after the next time
        cache.put(files, read=read)
    assert all(cache.get(present=read) == files for read, files in branches)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system where the cache is to be."""
    with small_disk(tmp_path / "cache", "128k") as folder:
        yield folder


@only(IN_FOLDERS)
def test_a_full_disk_and_one_that_cannot_be_written_are_read_on_and_said(disk: Path, cache: Cache) -> None:
    cache.put()
    large = {**FILES, "a.cubin": random.Random(1).randbytes(200_000)}  # also when it is compressed
    cache.put(large, OTHER)
    assert cache.said if isinstance(cache, Remote) else "No space left" in cache.said
    assert cache.get() == FILES and cache.get(OTHER) is None
    make_read_only(disk)
    cache.put(OTHERS, OTHER)
    assert cache.said if isinstance(cache, Remote) else "Read-only file system" in cache.said
    assert cache.get() == FILES and cache.get(OTHER) is None


def test_who_may_only_read_changes_nothing(cache: Cache) -> None:
    cache.put()
    cache.put(read=READ)
    cache.put(OTHERS, OTHER)
    name = next(name for name, data in cache.objects().items() if b"???" not in data)
    cache.replace(name, b"damaged")
    before = cache.objects()
    paths = [path for path in cache.place.rglob("*") if path.is_file()]
    for path in paths:
        os.utime(path, (1, 1))
    for present in ({}, READ):
        cache.get(present=present, writable=False)
    cache.put(OTHERS, KEY[::-1], writable=False, limit=1)
    assert cache.objects() == before and {path.stat().st_mtime for path in paths} in ({1}, set()) and not cache.said


PUT: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
}


@only(IN_FOLDERS)
@pytest.mark.parametrize("make", PUT.values(), ids=PUT)
def test_what_is_no_file_of_the_cache_is_a_miss_and_not_waited_for(cache, make):
    cache.put(read=READ)
    for name in cache.objects():
        content = (cache.place / name).read_bytes()
        (cache.place / name).unlink()
        make(cache.place / name)
        assert cache.get(present=READ) is None
        if cache.replaces:
            cache.put(read=READ)
        else:
            (cache.place / name).rmdir() if (cache.place / name).is_dir() else (cache.place / name).unlink()
            (cache.place / name).write_bytes(content)
        assert cache.get(present=READ) == FILES


# --- Caches of this machine: sizes, and folders that are not theirs


@only(LOCAL)
def test_what_was_used_least_recently_goes_first(cache: Cache) -> None:
    keys = [f"{number:x}" * 64 for number in range(5)]
    for number, key in enumerate(keys[:4]):
        before = {path: path.stat().st_mtime for path in cache.place.rglob("*")}
        cache.put({**FILES, "a.cubin": bytes(10_000)}, key)
        for path in {*cache.place.rglob("*")} - {*before}:
            os.utime(path, (number, number))
    assert cache.get(keys[0])
    cache.put({**FILES, "a.cubin": bytes(10_000)}, keys[4], limit=25_000)
    assert [cache.get(key) is not None for key in keys] == [True, False, False, False, True]


@only(LOCAL)
@pytest.mark.parametrize(
    ("tag", "name"),
    [(None, "py"), (None, "aa"), ("", "py"), ("Signature: 8a477f597d28d172789f06886806bc55\n# pip's", "py")],
)
def test_a_folder_of_somebody_else_is_refused_and_stays(cache: Cache, tag: str | None, name: str) -> None:
    """Also if it looks as one of ours, whose folders are called as digests begin."""
    (cache.place / name).mkdir(parents=True)
    (cache.place / name / "precious.txt").write_text("mine")
    if tag is not None:
        (cache.place / "CACHEDIR.TAG").write_text(tag)
    before = {path: path.is_file() and path.read_text() for path in cache.place.rglob("*")}
    for act in (cache.put, cache.get, lambda: cache.get(writable=False)):
        with pytest.raises(SettingsError, match=r"has other things in it, such as '") as caught:
            act()
        assert str(cache.place) in str(caught.value) and caught.value.where.stage == "settings" and caught.value.remedy
    assert {path: path.is_file() and path.read_text() for path in cache.place.rglob("*")} == before


@only(LOCAL)
@pytest.mark.parametrize("target", ["file", "nothing"])
def test_what_is_no_folder_cannot_have_a_cache(cache: Cache, target: str) -> None:
    (cache.folder / "file").write_text("mine")
    cache.place.symlink_to(target)
    with pytest.raises(SettingsError, match="cache: that is no folder") as caught:
        cache.put()
    assert caught.value.remedy is not None and "to a folder" in caught.value.remedy
    assert (cache.folder / "file").read_text() == "mine" and not (cache.folder / "nothing").exists()


@only(LOCAL)
@pytest.mark.parametrize("text", [None, "", "Signature: 8a477f597d28d172789f06886806bc55\n# A buil"])
def test_a_cache_whose_tag_is_damaged_is_used_and_marked_again(cache: Cache, text: str | None) -> None:
    cache.place.mkdir()
    (cache.place / ".scratch-1-x").touch()  # of a process that was killed before it wrote the tag
    cache.put()
    tag = cache.place / "CACHEDIR.TAG"
    whole = tag.read_text()
    assert whole.startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    tag.unlink() if text is None else tag.write_text(text)
    assert cache.get() == FILES
    cache.put(OTHERS, OTHER)
    assert tag.read_text() == whole
    tag.write_text("damaged")
    (cache.place / "notes").touch()
    with pytest.raises(SettingsError):
        cache.put()
