"""Which part of the kernels a machine builds, if several machines share a build without talking to each other.

A kernel's shard follows from its name and the number of shards alone, by a hash. So kernels that are added or removed,
and the order of files, move no other kernel.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from .errors import SettingsError, Where, shown

SHARD = re.compile(r"(0|[1-9][0-9]{0,4})/(0|[1-9][0-9]{0,4})", re.ASCII)
"""A shard on the command line."""


@dataclass(frozen=True)
class Shard:
    """One of the shards that the kernels are divided into.

    Arguments:
        number: from 1 to the count.
        count: how many there are.
    """

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def has(self, kernel: str) -> bool:
        """Whether a kernel is in this shard."""
        return shard_of(kernel, self.count) == self


def shard_of(kernel: str, count: int) -> Shard:
    """The shard of a kernel, by the first eight bytes of the SHA-256 of its name."""
    digest = hashlib.sha256(kernel.encode()).digest()
    return Shard(int.from_bytes(digest[:8], "big") % count + 1, count)


def parse_shard(text: str) -> Shard:
    """A shard as the command line has it, such as ``2/8``.

    Raises:
        SettingsError: it is none.
    """
    match = SHARD.fullmatch(text)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        message = f"--shard is {shown(text)}, expected a number of a shard and how many there are"
        remedy = "write 1/8 for the first of eight shards, and 8/8 for the last"
        raise SettingsError(message, Where(stage="settings"), remedy)
    return Shard(number, count)
