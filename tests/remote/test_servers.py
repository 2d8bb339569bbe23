"""The remote cache on real servers: nginx with tokens and with TLS, and S3 by rclone and by moto."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from kernelwright.core.errors import SettingsError
from kernelwright.define.remote_address import TOKEN
from kernelwright.state import remote_bazel
from kernelwright.state.entry import key_of
from kernelwright.state.remote_bazel import BazelStore, _fields
from kernelwright.state.remote_store import ObjectStore
from support.certificates import certificates
from support.disks import small_disk

from remote.machines import FILES, OTHER, Machine, fill, machine
from remote.servers import READER, WRITER, azurite, moto, nginx, rclone

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'kernelwright[remote]'")


def test_nginx_keeps_what_was_written_first(tmp_path: Path) -> None:
    with nginx(tmp_path / "nginx") as server:
        fill(tmp_path / "one", server.address, {"helper.py": "now"})
        before = {path: path.read_bytes() for path in server.objects()}
        assert {path.parent.parent.name for path in before} == {"v1"} and len(before) == 2
        with machine(tmp_path / "two", server.address, remote_mode="read") as reader:
            assert reader.fetched(current=lambda name: "now") == FILES
            assert reader.fetched(OTHER) is None
        other = {**FILES, "b.json": b"something else under the same key"}
        fill(tmp_path / "three", server.address, {"helper.py": "now"}, other)
        assert {path: path.read_bytes() for path in server.objects()} == before
        assert not any(" 5" in line.partition('" ')[2][:3] for line in server.requests())


def test_nginx_tells_readers_from_writers(tmp_path: Path) -> None:
    with nginx(tmp_path / "nginx", closed=True) as server:
        fill(tmp_path / "one", server.address, **{TOKEN: WRITER})
        assert len(server.objects()) == 1
        with machine(tmp_path / "two", server.address, remote_mode="read", **{TOKEN: READER}) as reader:
            assert reader.fetched() == FILES and not reader.said
        with machine(tmp_path / "three", server.address, **{TOKEN: READER}) as ambitious:
            ambitious.store(key=OTHER)
            assert ambitious.fetched() == FILES
        assert len(ambitious.said) == 1 and "does not let us write (403)" in ambitious.said[0]
        for token in ({}, {TOKEN: "expired"}):
            with machine(tmp_path / f"four{len(token)}", server.address, **token) as stranger:
                assert stranger.fetched() is None and stranger.fetched() is None
            assert len(stranger.said) == 1 and "401" in stranger.said[0]
            assert "expired" not in stranger.said[0]
        assert len(server.objects()) == 1


def test_a_disk_that_is_full_there_costs_one_line_and_leaves_no_part(tmp_path: Path) -> None:
    keys = [key_of("a stage", [(str(number), "0" * 64)]) for number in range(8)]
    with small_disk(tmp_path / "nginx", "256k"), nginx(tmp_path / "nginx") as server:
        with machine(tmp_path / "one", server.address) as writer:
            for key in keys:
                writer.store({**FILES, "a.cubin": os.urandom(64 << 10)}, key)
        assert writer.remote.lacks_something
        assert (
            len(writer.said) == 1 and "cannot be written, and is off for this run: the server answers" in writer.said[0]
        )
        there = len(server.objects())
        assert 0 < there < len(keys)
        with machine(tmp_path / "two", server.address, remote_mode="read") as reader:
            assert [reader.fetched(key) is not None for key in keys].count(True) == there and not reader.said


def test_a_netrc_file_has_the_token(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text(f"machine localhost login bearer password {WRITER}\n")
    (tmp_path / ".netrc").chmod(0o600)
    with nginx(tmp_path / "nginx", closed=True) as server:
        fill(tmp_path / "one", server.address, HOME=str(tmp_path))
        fill(tmp_path / "two", server.address, NETRC=str(tmp_path / "none"))
        assert len(server.objects()) == 1
        (tmp_path / ".netrc").write_text("machines localhost\n")
        with pytest.raises(SettingsError, match="netrc file cannot be read") as caught:
            Machine(tmp_path / "three", server.address, HOME=str(tmp_path))
        assert WRITER not in str(caught.value)


def test_a_certificate_of_ones_own_counts_where_it_is_named(tmp_path: Path) -> None:
    try:
        own = certificates(tmp_path / "own")
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    with nginx(tmp_path / "nginx", closed=True, certificate=(own / "cert.pem", own / "key.pem")) as server:
        fill(tmp_path / "one", server.address, remote_ca=str(own / "ca.pem"), **{TOKEN: WRITER})
        assert len(server.objects()) == 1
        with machine(tmp_path / "two", server.address, remote_mode="read", **{TOKEN: READER}) as careful:
            assert [careful.fetched() for _ in range(3)] == [None] * 3 and careful.remote.is_off
            assert len(careful.said) == 1 and "certificate is not trusted" in careful.said[0]


def written_twice_and_read(tmp_path: Path, address: str) -> None:
    """Have two machines write the same, and a third one read it."""
    for number in range(2):
        fill(tmp_path / f"writer{number}", address, {"helper.py": "now"})
    with machine(tmp_path / "reader", address, remote_mode="read") as reader:
        assert reader.fetched(current=lambda name: "now") == FILES
        assert reader.fetched(OTHER) is None and not reader.said


def refused(tmp_path: Path, address: str, secret: str) -> None:
    """Ask a server with a secret that is wrong."""
    with machine(tmp_path / "stranger", address) as stranger:
        assert stranger.fetched(current=lambda name: "now") is None
        stranger.store()
    assert len(stranger.said) == 1 and secret not in stranger.said[0]


def bazel_build(project: Path, output: Path, address: str) -> str:
    """Have Bazel make a file in a new output tree, with a remote cache; the content of that file."""
    program = shutil.which("bazel")
    if program is None:
        pytest.skip("Bazel is not installed: apt-get install bazel-bootstrap")
    words = ["--batch", "--nohome_rc", f"--output_user_root={output}"]  # Debian's needs the rc file of the system
    words += ["build", "--spawn_strategy=local", f"--remote_cache={address}", "//:made"]
    run = subprocess.run([program, *words], cwd=project, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return (project / "bazel-bin/out.txt").read_text()


def test_bazel_takes_what_is_stored_in_its_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "WORKSPACE").touch()
    (project / "BUILD").write_text('genrule(name = "made", outs = ["out.txt"], cmd = "echo Bazel > $@")\n')
    with nginx(tmp_path / "nginx") as server:
        fill(tmp_path / "one", server.address, remote_layout="bazel")
        ours = set(server.objects())
        assert bazel_build(project, tmp_path / "first", server.address) == "Bazel\n"
        # What Bazel has stored is read as ours is.
        (result,) = (path for path in server.objects() if path.parent.name == "ac" and path not in ours)
        store = BazelStore(ObjectStore(server.address, {}, ""))
        assert store.get(result.name) == b"Bazel\n"
        # What we store as the result of the same action is what Bazel takes.
        file = dict(_fields(dict(_fields(result.read_bytes()))[2]))
        monkeypatch.setattr(remote_bazel, "OUTPUT", file[1].decode())
        result.unlink()
        assert store.put(result.name, b"ours\n")
        assert bazel_build(project, tmp_path / "second", server.address) == "ours\n"
        with machine(tmp_path / "two", server.address, remote_mode="read", remote_layout="bazel") as reader:
            assert reader.fetched() == FILES and not reader.said


@pytest.mark.parametrize("kind", [rclone, moto])
def test_s3(tmp_path, kind, monkeypatch):
    with kind(tmp_path / "rclone") if kind is rclone else kind() as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        address = "s3://cache/team/kernels"
        written_twice_and_read(tmp_path, address)
        if kind is rclone:
            paths = [
                path.relative_to(tmp_path / "rclone").as_posix() for path in (tmp_path / "rclone").rglob("*/*/*/*/*/*")
            ]
            assert len(paths) == 2 and all(path.startswith("cache/team/kernels/v1/") for path in paths)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
            refused(tmp_path, address, "another-secret")


def test_azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with azurite(tmp_path / "azurite") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        address = "az://cache/team/kernels"
        written_twice_and_read(tmp_path, address)
        wrong = base64.b64encode(b"another-secret").decode()
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", wrong)
        refused(tmp_path, address, wrong)
