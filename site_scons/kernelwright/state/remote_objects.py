"""What is in an object: an entry of the build cache, compressed, and perhaps signed."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from ..core.errors import SettingsError, Where
from ..core.files import LARGEST_RECORD
from ..define.remote_address import SIGNING_KEY

SIGNED = b"KWS1"
"""What a signed object begins with; 64 bytes of signature follow. What zlib writes never begins so."""

HEAD = len(SIGNED) + 64


@dataclass(frozen=True)
class Seal:
    """How objects are signed, and how signatures are checked.

    Arguments:
        sign: gives the 64 bytes of the signature of a text; None: objects are not signed.
        verify: whether a signature fits a text; None: signatures are not checked.
    """

    sign: Callable[[bytes], bytes] | None = None
    verify: Callable[[bytes, bytes], bool] | None = None

    def packed(self, name: str, entry: bytes) -> bytes:
        """The object of an entry.

        Arguments:
            name: of the object; a signature covers it, so that an object counts under one name only.
        """
        data = zlib.compress(entry)
        return data if self.sign is None else SIGNED + self.sign(name.encode() + data) + data

    def checked(self, name: str, content: bytes) -> bytes:
        """An object without its signature. Raises ValueError if it is not signed as it has to be."""
        signature, data = b"", content
        if content.startswith(SIGNED):
            signature, data = content[len(SIGNED) : HEAD], content[HEAD:]
        if self.verify is not None and not self.verify(signature, name.encode() + data):
            raise ValueError("it is not signed with the key of remote_key")
        return data


def may_be_object(begin: bytes) -> bool:
    """Whether something begins as an object does: with a signature, or as what zlib has written (RFC 1950)."""
    return begin.startswith(SIGNED) or (begin[:1] == b"\x78" and int.from_bytes(begin[:2], "big") % 31 == 0)


class LargerError(Exception):
    """An entry is larger than the limit for unpacking it."""


def most_expected(size: int) -> int:
    """Bytes that the entry in an object of this size has at most, as a rule. A larger one is unpacked alone."""
    return min((1 << 20) + 8 * size, LARGEST_RECORD)


def decompressed(data: bytes, limit: int = LARGEST_RECORD) -> bytes:
    """The entry that an object has, from what :meth:`Seal.checked` gives. Raises ValueError if it is damaged.

    Arguments:
        limit: bytes that it may have. If the limit is below ``LARGEST_RECORD``, a larger entry raises LargerError.
    """
    reader = zlib.decompressobj()
    try:
        entry = reader.decompress(data, limit)
    except zlib.error as error:
        raise ValueError("it cannot be decompressed") from error
    if limit < LARGEST_RECORD and not reader.eof and reader.unconsumed_tail:
        raise LargerError
    if not reader.eof or reader.unused_data:
        raise ValueError("it is cut off, too long, or larger than any entry")
    return entry


def seal_of(public: str, private: str) -> Seal:
    """The seal of a public key, which signatures have to fit, and of a private key; each may be empty.

    Raises:
        SettingsError: one of them is no key, the package cryptography is missing, or they are not of one pair.
    """
    if not public and not private:
        return Seal()
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    except ImportError:
        remedy = "pip install 'kernelwright[signed]'"
        message = "signatures of a remote cache need the package cryptography"
        raise SettingsError(message, Where(stage="settings"), remedy) from None
    signer = Ed25519PrivateKey.from_private_bytes(_key(private, SIGNING_KEY)) if private else None
    if not public:
        return Seal(signer.sign if signer else None)
    raw = _key(public, "remote_key")
    if signer is not None and signer.public_key().public_bytes_raw() != raw:
        message = f"the key in {SIGNING_KEY} is not the private key of remote_key"
        raise SettingsError(message, Where(stage="settings"), "kernelwright cache keys makes a pair")
    known = Ed25519PublicKey.from_public_bytes(raw)

    def verify(signature: bytes, text: bytes) -> bool:
        try:
            known.verify(signature, text)
        except InvalidSignature:
            return False
        return True

    return Seal(signer.sign if signer else None, verify)


def new_keys() -> tuple[str, str]:
    """A new pair of keys: the public and the private one, in base64."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    public, private = key.public_key().public_bytes_raw(), key.private_bytes_raw()
    return base64.b64encode(public).decode(), base64.b64encode(private).decode()


def _key(text: str, place: str) -> bytes:
    """The 32 bytes of a key. The message of an error never has the key."""
    try:
        raw = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 32:
        message = f"{place} is no key of Ed25519: 32 bytes in base64 are expected"
        raise SettingsError(message, Where(stage="settings"), "kernelwright cache keys makes a pair")
    return raw
