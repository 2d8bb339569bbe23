"""The cache folder of compile on demand: its place, locks, scratch folders, and what is done if it cannot be written.

What it has in common with other caches is in ``contracts/test_caches.py``.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernelwright.core import locks
from kernelwright.core.errors import KernelwrightError
from kernelwright.core.files import open_lock
from kernelwright.define.settings import Settings
from kernelwright.ondemand import cache_place
from kernelwright.ondemand import store as store_module
from kernelwright.ondemand.cache_place import PLACE, CacheError, cache_folder
from kernelwright.ondemand.kernel_folders import damage, kernel_folder, put
from kernelwright.ondemand.session import Session
from kernelwright.ondemand.store import KernelStore, clear_cache
from kernelwright.package.manifest import sealed_document
from kernelwright.runtime.loader import SCHEMA
from kernelwright.state.entry import entry_key
from kernelwright.state.own_folder import mark_own
from support.disks import allow_writing, make_read_only, obedient, put_in_place, small_disk

KEY = "ab" * 32
OTHER = "cd" * 32


def a_store(tmp_path: Path, **more: bool) -> KernelStore:
    return KernelStore(tmp_path / "cache", 1 << 20, **more)


def write_kernel(folder: Path, key: str = entry_key(KEY, {}), content: bytes = b"library") -> None:
    """What a compile leaves: a library, and a manifest with its digest and its whole key."""
    (folder / "_lib").mkdir(parents=True)
    contents = {"_lib/scale.so": content, "later.json": b"{}"}
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    files = {name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)} for name, data in contents.items()}
    (folder / "manifest.json").write_text(sealed_document({"schema": SCHEMA, "key": key, "files": files}))


def publish(store: KernelStore, name: str = "scale", key: str = KEY, content: bytes = b"library") -> Path:
    with store.scratch(name) as scratch:
        write_kernel(scratch, entry_key(key, {}), content)
        return store.publish(name, key, entry_key(key, {}), scratch)


def find(store: KernelStore, name: str = "scale", key: str = KEY) -> Path | None:
    """The folder of a kernel that no other files decide; None: there is none."""
    found = store.find(name, key, lambda file: "")
    return None if found is None else found.folder


def quiet() -> None:
    """Nothing is shown while a test waits."""


def rest(folder: Path) -> list[str]:
    """What is left where things are made."""
    return [path.name for name in ("scratch", "locks") for path in (folder / name).glob("*")]


# The place.


def test_the_cache_is_where_the_variable_says_or_in_the_git_tree_or_at_home(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path / "home")}
    inner = tmp_path / "tree/kernels/deep"
    inner.mkdir(parents=True)
    assert cache_folder(inner, home) == tmp_path / "home/.cache/kernelwright"
    (tmp_path / "tree/.git").write_text("gitdir: elsewhere")  # as in a worktree
    assert cache_folder(inner, home) == tmp_path / "tree/.cache/kernelwright"
    (tmp_path / "tree/kernels/.git").mkdir()
    assert cache_folder(inner, home) == tmp_path / "tree/kernels/.cache/kernelwright"
    given = {**home, "KERNELWRIGHT_CACHE_DIR": str(tmp_path / "given")}
    assert cache_folder(inner, given) == tmp_path / "given"


def test_the_cache_is_no_news_for_git(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    publish(KernelStore(cache_folder(tmp_path, {}), 1 << 20))
    status = subprocess.run(["git", "-C", str(tmp_path), "status", "--porcelain"], capture_output=True, check=True)
    assert status.stdout == b""


# Kernels.


def test_a_kernel_is_found_by_its_name_and_by_its_whole_key_only(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    folder = publish(store)
    assert folder == tmp_path / f"cache/kernels/scale-{KEY[:16]}-{entry_key(KEY, {})[:16]}" == find(a_store(tmp_path))
    assert find(store, "other", KEY) is None and rest(tmp_path / "cache") == []
    shutil.rmtree(folder)
    write_kernel(folder, entry_key(KEY, {})[:16] + OTHER[16:])
    assert find(store) is None, "only the first digits are the same"


def test_the_first_one_stays_and_a_damaged_one_makes_way(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    folder = publish(store)
    inode = folder.stat().st_ino
    assert publish(store) == folder and folder.stat().st_ino == inode
    library = folder / "_lib/scale.so"
    with library.open("rb") as reader:
        os.truncate(library, 3)
        assert damage(folder) == [f"{library}: was altered"]
        assert publish(store) == folder and damage(folder) == []
        assert reader.read() == b"lib", "who has opened a file keeps it"
    folder.rename(tmp_path / "away")
    folder.write_text("a file in its place")
    assert find(store) is None and publish(store) == folder == find(store)


def test_records_that_are_no_files_are_not_copied(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/toolchain.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "cache/measurements.json")
    mark_own(tmp_path / "cache")
    assert list(KernelStore(tmp_path / "cache", writable=False).work.iterdir()) == []


def test_a_manifest_that_reaches_out_of_its_folder_is_damage(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"x")
    listed = {"sha256": hashlib.sha256(b"x").hexdigest(), "size": 1}
    for name in ("../outside", str(tmp_path / "outside")):
        document = {"schema": SCHEMA, "key": KEY, "files": {name: listed}}
        (tmp_path / "manifest.json").write_text(sealed_document(document))
        (problem,) = damage(tmp_path)
        assert "outside of the folder" in problem


def test_a_kernel_that_is_removed_as_soon_as_it_is_there_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "put", lambda made, place: put(made, place) and not shutil.rmtree(place))
    store = a_store(tmp_path)
    assert not publish(store).exists()
    assert find(store) is None, "whoever loads it compiles it again"


@pytest.mark.parametrize("name", ["_lib/scale.so", "manifest.json"])
@pytest.mark.parametrize("what", ["pipe", "device", "link", "folder", "sparse"])
def test_only_files_of_the_size_that_is_listed_are_read_to_find_damage(tmp_path: Path, name: str, what: str) -> None:
    store = a_store(tmp_path)
    folder = publish(store)
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    put_in_place(folder / name, what, content)
    (problem,) = damage(folder)
    assert problem.startswith(f"{folder / name}: ")
    assert publish(store) == folder and damage(folder) == []


def test_a_failed_compile_is_kept_with_its_log_and_replaces_the_one_before(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    for number in range(2):
        with store.scratch("scale") as scratch:
            (scratch / f"{number}.cu").write_text("code")
            folder = store.fail("scale-n-1", KEY, scratch, f"error {number}\udcff {scratch}/a.cu")
    assert folder == tmp_path / f"cache/failed/scale-n-1-{KEY[:16]}"
    assert sorted(path.name for path in folder.iterdir()) == ["1.cu", "log.txt"]
    assert (folder / "log.txt").read_text() == f"error 1\\udcff {folder}/a.cu"


# Scratch folders and locks.


def test_an_interrupt_leaves_nothing_and_a_wait_that_is_given_up_is_an_error(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    with pytest.raises(KeyboardInterrupt), store.scratch("scale") as scratch, store.locked(KEY, 1, quiet):
        (scratch / "half").write_text("x")
        raise KeyboardInterrupt
    assert rest(tmp_path / "cache") == []
    answers = iter([False, False, True])
    store = a_store(tmp_path)
    with (
        store.locked(KEY, 1, quiet),
        pytest.raises(CacheError, match="the compile was ended before it began"),
        a_store(tmp_path).locked(KEY, 60, quiet, lambda: next(answers)),
    ):
        raise AssertionError("the lock is not free")
    assert rest(tmp_path / "cache") == []


def run_child(tmp_path: Path, body: str, *prefix: str) -> subprocess.Popen[str]:
    """A process with ``store``; wait for its first line before going on."""
    code = f"""
import os, signal, sys, time
from pathlib import Path
from kernelwright.core.files import scratch_folder
from kernelwright.ondemand.store import KernelStore
quiet = print
store = KernelStore(Path({str(tmp_path / "cache")!r}), 1 << 20)
{body}
"""
    return subprocess.Popen([*prefix, sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock, and has begun to make the kernel."""
    body = f"""
with store.scratch("scale") as scratch, store.locked({KEY!r}, 1, quiet), scratch_folder(store.work / "scratch"):
    (scratch / "half").write_text("x")
    print("holds", flush=True)
    time.sleep(60)
"""
    with run_child(tmp_path, body) as process:
        assert process.stdout and process.stdout.readline() == "holds\n"
        yield process
        process.kill()


def test_what_a_killed_process_was_making_is_removed_later_and_its_lock_is_free(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(cache_place, "YOUNG_S", -1.0)
    left = sorted((tmp_path / "cache/scratch").iterdir())
    assert len(left) == 2, "one for the kernel, and one for a stage of it"
    assert a_store(tmp_path).lasting and sorted((tmp_path / "cache/scratch").iterdir()) == left, "its process lives"
    killing = threading.Timer(0.3, holder.send_signal, (signal.SIGKILL,))
    killing.start()
    with a_store(tmp_path).locked(KEY, 30, quiet):
        assert killing.finished.is_set()
    holder.wait()
    assert a_store(tmp_path).lasting and not list((tmp_path / "cache/scratch").iterdir())


def test_after_the_timeout_the_error_names_the_holder(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    waits: list[int] = []
    expected = f"process {holder.pid} is compiling the same kernel, and did not finish in 1.3 s"
    with (
        pytest.raises(CacheError, match=expected) as caught,
        a_store(tmp_path).locked(KEY, 1.3, lambda: waits.append(1)),
    ):
        raise AssertionError("the lock is not free")
    assert "wait for it to end" in str(caught.value) and len(waits) == 1
    with a_store(tmp_path).locked(OTHER, 0, quiet):
        pass


def test_threads_exclude_one_another_and_leave_no_file(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(20):
            with store.locked(KEY, 60, quiet):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1} and len(most) == 80 and rest(tmp_path / "cache") == []


def test_a_lock_counts_only_if_its_file_is_still_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    def open_slowly(path: Path) -> int:
        lock = open_lock(path)
        if not opened:
            path.unlink()  # as its last holder does, between our two steps
        opened.append(path)
        return lock

    monkeypatch.setattr(store_module, "open_lock", open_slowly)
    held = a_store(tmp_path).locked(KEY, 1, quiet)
    with held, pytest.raises(CacheError), a_store(tmp_path).locked(KEY, 0.05, quiet):
        pass
    assert len(opened) > 2


def test_a_forked_child_does_not_keep_the_lock_of_a_killed_parent(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_place, "YOUNG_S", -1.0)
    body = f"""
with store.scratch("scale"), store.locked({KEY!r}, 1, quiet):
    if not os.fork():
        print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
"""
    with run_child(tmp_path, body) as process:
        assert process.stdout
        child = int(process.stdout.readline())
        try:
            process.kill()
            process.wait()
            with a_store(tmp_path).locked(KEY, 5, quiet):
                os.kill(child, 0)
            assert list((tmp_path / "cache/scratch").iterdir()) == []
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_that_leaves_a_lock_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    body = f"""
with store.scratch("scale") as scratch:
    with store.locked({KEY!r}, 1, print):
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            print(scratch.exists(), flush=True)
            time.sleep(60)
if not child:
    os._exit(0)
"""
    with run_child(tmp_path, body) as process:
        assert process.stdout and process.stdout.readline() == "True\n"
        with pytest.raises(CacheError, match=f"process {process.pid}"), a_store(tmp_path).locked(KEY, 0.05, quiet):
            pass
        process.kill()


def test_where_nothing_can_be_locked_no_lock_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    store = a_store(tmp_path)
    monkeypatch.setattr(fcntl, "flock", refuse)
    with store.locked(KEY, 1, quiet), store.locked(KEY, 1, quiet):
        pass
    assert set() == locks._HELD


# A cache that cannot be written.


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB of its own, where the cache is to be."""
    with small_disk(tmp_path / "cache", "1m") as folder:
        yield folder


def require_private(store: KernelStore, reason: str) -> None:
    """A store works without its folder, and says why."""
    folder = publish(store, "other", OTHER)
    assert find(store, "other", OTHER) == folder and store.folder not in folder.parents
    assert store.problem and reason in store.problem and "KERNELWRIGHT_CACHE_DIR" in store.problem
    assert not store.lasting
    with store.locked(KEY, 1, quiet), store.scratch("scale") as scratch:
        assert scratch.is_dir()
        assert store.work in store.fail("scale", KEY, scratch, "log").parents


@pytest.mark.parametrize("reason", ["Read-only file system", "No space left on device"])
def test_a_cache_that_cannot_be_written_is_read_and_work_is_done_elsewhere(tmp_path, mounted, reason):
    folder = publish(a_store(tmp_path))
    if reason == "Read-only file system":
        make_read_only(mounted)
    else:
        with pytest.raises(OSError, match=reason), (mounted / "scratch/filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(1 << 16)):
                pass
    store = a_store(tmp_path)
    assert find(store) == folder and store.problem is None, "reading needs nothing else"
    require_private(store, reason)
    assert ("kernelwright cache prune" in str(store.problem)) == ("space" in reason)
    if reason == "Read-only file system":
        with pytest.raises(CacheError, match=reason):
            clear_cache(tmp_path / "cache")
        assert find(store) == folder
    else:  # what can be removed makes room
        os.utime(folder, (0, 0))
        assert store.prune(0) > 0 and not folder.exists()
        clear_cache(tmp_path / "cache")


def test_a_link_in_the_cache_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / f"scale-{KEY[:16]}").mkdir(parents=True)
    store = a_store(tmp_path)
    assert store.lasting
    (tmp_path / "cache/kernels").rmdir()
    (tmp_path / "cache/kernels").symlink_to(outside)
    require_private(a_store(tmp_path), "symbolic link")
    store.clear()
    assert list(outside.iterdir())


def test_looking_for_a_kernel_changes_nothing_in_a_cache_that_may_not_be_written(tmp_path: Path) -> None:
    folder, cache = publish(a_store(tmp_path)), tmp_path / "cache"
    allow_writing(cache, False)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in (cache, *cache.rglob("*"))}
    body = f"""
for _ in range(2):
    print(store.find("scale", {KEY!r}, str).folder)
    print(store.lasting)  # from now on it works elsewhere
"""
    with run_child(tmp_path, body, *obedient()) as process:
        assert process.stdout and process.stdout.read() == f"{folder}\nFalse\n" * 2
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in (cache, *cache.rglob("*"))} == before
    allow_writing(cache, True)


def test_what_is_copied_from_a_cache_that_may_not_be_written_can_be_written(tmp_path: Path) -> None:
    publish(a_store(tmp_path))
    records = tmp_path / "cache/discovery/project"
    records.mkdir(parents=True)
    records.chmod(0o500)
    store = a_store(tmp_path, writable=False)
    assert (store.work / "discovery/project").stat().st_mode & 0o700 == 0o700
    assert find(store) and not store.lasting and tmp_path not in publish(store, "other", OTHER).parents


def test_a_disk_that_becomes_full_while_a_kernel_is_put_in_place_is_an_error(tmp_path, monkeypatch):
    store = a_store(tmp_path)

    def refuse(path: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with store.scratch("scale") as scratch:
        write_kernel(scratch)
        monkeypatch.setattr(Path, "rename", refuse)
        with pytest.raises(CacheError, match="No space left on device") as caught:
            store.publish("scale", KEY, entry_key(KEY, {}), scratch)
    assert "make room on the disk" in str(caught.value) and str(tmp_path) in str(caught.value)


def test_a_session_makes_no_folder_before_something_is_compiled(tmp_path: Path) -> None:
    store = KernelStore(tmp_path / "cache")
    session = Session(tmp_path, Settings(), store, 1)
    session.end_children()
    assert not store.folder.exists()


def test_a_disk_that_becomes_full_has_work_go_on_in_a_private_folder(tmp_path, monkeypatch):
    store = a_store(tmp_path)
    session = Session(tmp_path, Settings(), store, 1)
    tried = []

    def work() -> Path:
        tried.append(session.discovery)
        if len(tried) == 1:
            raise KernelwrightError("a stage failed") from OSError(errno.ENOSPC, "No space left on device")
        return store.work

    def fail() -> Path:
        raise KernelwrightError("another reason")

    assert session.with_room(work) != store.folder and tried[0] != tried[1]
    assert "No space left on device" in str(store.untold_problem()) and not store.lasting
    other = a_store(tmp_path / "other")
    with pytest.raises(KernelwrightError, match="another reason"):
        Session(tmp_path, Settings(), other, 1).with_room(fail)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    assert not other.gives_way(KernelwrightError("cc failed")), "there is no room elsewhere, either"
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: usage._replace(free=1000 if path == other.folder else 1 << 30)
    )
    assert other.gives_way(KernelwrightError("cc failed")), "whatever the compiler has said"


def test_a_private_store_reads_and_keeps_nothing(tmp_path: Path) -> None:
    code = """
import sys; sys.path.insert(0, "..")
from test_store import KernelStore, find, publish
store = KernelStore.private()
assert find(store) is None and not store.lasting and store.problem is None
assert publish(store) == find(store)
print(store.work)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and not Path(done.stdout.strip()).exists()


# Bounds.


def age(folder: Path, seconds: float) -> None:
    used = time.time() - seconds
    os.utime(folder, (used, used))


def test_failures_go_as_well_and_what_is_in_use_stays(tmp_path: Path) -> None:
    store = KernelStore(tmp_path / "cache", 50_000)
    old, used = publish(store, content=bytes(20_000)), publish(store, key=OTHER)
    with store.scratch("scale") as scratch:
        (scratch / "big").write_bytes(bytes(20_000))
        age(store.fail("scale", OTHER, scratch, "log"), 5000)
    store.trim()
    assert len(store.failures()) == 1, "all of it fits"
    age(old, 1000)
    store.prune(store.size() - 1)
    assert store.failures() == [] and old.exists(), "what was used last stays"
    store.prune(0)
    assert not old.exists() and used.exists(), "a kernel that was used a moment ago stays"


def test_nothing_is_looked_at_if_nothing_was_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    age(publish(a_store(tmp_path)), 1000)
    store = KernelStore(tmp_path / "cache", 1)
    assert find(store, "scale", OTHER) is None
    monkeypatch.setattr(store, "_removable", None)
    store.trim()


def test_what_cannot_be_removed_to_make_room_is_a_problem_that_is_told_once(tmp_path, monkeypatch):
    def refuse(folder: Path) -> None:
        raise CacheError("it stays", PLACE)

    store = KernelStore(tmp_path / "cache", 1)
    age(publish(store), 1000)
    monkeypatch.setattr(store, "discard", refuse)
    store.trim()
    assert (store.untold_problem(), store.untold_problem()) == ("it stays", None)


def test_clearing_removes_what_is_ours_only(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    folder = publish(store)
    cache = tmp_path / "cache"
    (cache / "toolchain.json").write_text("{}")
    (cache / "discovery/aa").mkdir(parents=True)
    (cache / "notes.txt").write_text("mine")
    (cache / "kernels/my folder").mkdir()
    with store.scratch("scale") as scratch, store.locked(OTHER, 1, quiet):
        clear_cache(cache)
        assert scratch.exists() and (cache / f"locks/{OTHER}.lock").exists(), "somebody works there"
    assert not folder.exists()
    left = sorted(path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file())
    assert left == [".gitignore", "CACHEDIR.TAG", "notes.txt"]
    assert (cache / "kernels/my folder").is_dir()
    clear_cache(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    assert kernel_folder(cache, "scale", KEY, entry_key(KEY, {})) == publish(store), "it is a cache still"
