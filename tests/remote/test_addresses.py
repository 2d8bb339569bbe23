"""Addresses and credentials of remote caches: what is refused, and that no message shows a secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelwright.core.errors import SettingsError
from kernelwright.define.remote_address import SIGNING_KEY, TOKEN
from kernelwright.define.settings import Settings, merge
from kernelwright.state import remote_opening
from kernelwright.state.remote_opening import open_remote


def check(address: str) -> None:
    merge([("here", {"remote_cache": address})], ["tvm_ffi"])


@pytest.mark.parametrize(
    "address",
    [
        *("", "./a:b", "shared/cache", "/srv/cache", "https://cache.example.org/kernels", "http://[::1]:8080/x"),
        *("s3://bucket/a/b", "gs://bucket", "az://container/prefix"),
    ],
)
def test_addresses(address: str) -> None:
    check(address)


NEITHER = "neither an address, which has :// in it, nor a path"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        *((text, NEITHER) for text in ("https:/host/x", "S3:bucket", "https//me:s3cret@host/x", "me:s3cret@host:/x")),
        *((text, "unknown scheme") for text in ("ftp://host/x", "file:///srv", "S4://bucket", "redis://localhost")),
        *((text, "remote_cache") for text in ("https://", "https:///path", "s3://", "https://ho st/x")),
        ("https://host/../up", "remote_cache"),
    ],
)
def test_what_is_no_address_is_refused_and_not_shown_if_it_may_have_a_secret(address: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        check(address)
    assert caught.value.where.location == "here" and caught.value.remedy
    assert message != NEITHER or ("host/x" not in str(caught.value) and "s3cret" not in str(caught.value))
    assert message != "unknown scheme" or "https" in caught.value.remedy


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("https://user:s3cret@host/x", TOKEN),
        ("https://s3cret@host/x", ".netrc"),
        ("https://host/x?token=s3cret", TOKEN),
        ("s3://AKIA:s3cret@bucket/x", "AWS_SECRET_ACCESS_KEY"),
        ("gs://s3cret@bucket", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://container/x?sig=s3cret", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("https://host/x#s3cret", TOKEN),
        ("https://user:of/s3cret@host/x", TOKEN),
        ("s3cret@host://x", TOKEN),
    ],
)
def test_credentials_in_an_address_are_refused_and_not_shown(address: str, place: str) -> None:
    with pytest.raises(SettingsError, match="credentials") as caught:
        check(address)
    assert "s3cret" not in str(caught.value) and place in str(caught.value)


def opened(tmp_path: Path, address: str, environment: dict[str, str], **settings: str) -> list[str]:
    """What is said when a cache is opened."""
    said: list[str] = []
    open_remote(Settings(remote_cache=address, **settings), tmp_path, environment, said.append)
    return said


def test_a_token_is_not_sent_unencrypted_and_one_that_no_header_can_hold_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'kernelwright[remote]'")
    for safe in ("https://host/x", "http://localhost:80/x", "http://127.0.0.1/x", "http://[::1]:8080/x"):
        opened(tmp_path, safe, {TOKEN: "s3cret"})
    for unsafe in ("http://host/x", "http://127.example.org/x", "http://localhost.example.org/x"):
        with pytest.raises(SettingsError, match="unencrypted") as caught:
            opened(tmp_path, unsafe, {TOKEN: "s3cret"})
        assert "s3cret" not in str(caught.value)
        opened(tmp_path, unsafe, {})
    for token in ("s3cret\nHost: x", "s3cr\u00e9t"):
        with pytest.raises(SettingsError, match="is no token") as caught:
            opened(tmp_path, "https://host/x", {TOKEN: token})
        assert "s3cr" not in str(caught.value)
    with pytest.raises(SettingsError, match="remote_ca cannot be read"):
        opened(tmp_path, "https://host/x", {}, remote_ca="missing.pem")


def test_keys_that_are_none_are_refused_and_not_shown(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'kernelwright[signed]'")
    from kernelwright.state.remote_objects import new_keys

    with pytest.raises(SettingsError, match="remote_key is no key"):
        opened(tmp_path, str(tmp_path), {}, remote_key="short")
    public, private = new_keys()
    for wrong in (private[:-8], "s3cret", new_keys()[1]):
        with pytest.raises(SettingsError) as caught:
            settings = {"remote_key": public, "remote_mode": "read-write"}
            opened(tmp_path, str(tmp_path), {SIGNING_KEY: wrong}, **settings)
        assert wrong not in str(caught.value) and SIGNING_KEY in str(caught.value)


@pytest.mark.parametrize(
    ("address", "variables"),
    [
        ("az://container/x", {}),
        ("az://container/x", {"AZURE_STORAGE_ACCOUNT_NAME": "me", "AZURE_STORAGE_ACCOUNT_KEY": "s3cret!"}),
        ("gs://bucket/x", {"GOOGLE_APPLICATION_CREDENTIALS": "/s3cret"}),
    ],
)
def test_without_credentials_a_build_goes_on(tmp_path, monkeypatch, address, variables):
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'kernelwright[remote]'")
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    said: list[str] = []
    assert open_remote(Settings(remote_cache=address), tmp_path, {}, said.append) is None
    assert len(said) == 1 and "its credentials belong in" in said[0] and "s3cret" not in said[0]


def test_without_obstore_a_build_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    assert "pip install 'kernelwright[remote]'" in opened(tmp_path, "https://host/x", {})[0]
    assert not opened(tmp_path, str(tmp_path), {})


@pytest.mark.parametrize(
    ("address", "host"),
    [("https://[::1]/x", "::1"), ("https://[::1]:8080/x", "::1"), ("https://a.b:1/x", "a.b"), ("http://a.b", "a.b")],
)
def test_the_credentials_are_those_that_netrc_has_of_the_host(tmp_path: Path, address: str, host: str) -> None:
    (tmp_path / ".netrc").write_text(f"machine {host} login bearer password s3cret\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert remote_opening._headers(address, {"HOME": str(tmp_path)}) == {"authorization": "Bearer s3cret"}
    assert remote_opening._headers(address, {"NETRC": str(tmp_path / "none")}) == {}
