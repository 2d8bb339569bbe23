"""Finds paths of the machine that builds. Files that users publish may not contain such paths."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

OF_SOMEBODY = re.compile(rb"/(?:home|root|Users|tmp|build|workspace|github)/[A-Za-z0-9._+-]+/[A-Za-z0-9._+/-]*")
"""Paths that only exist on the machine that built a file."""


def private_pattern(private: Sequence[str]) -> re.Pattern[bytes]:
    """What finds paths that no file of a wheel may name: those of somebody, and those below some folders."""
    known = [re.escape(os.fsencode(folder.rstrip("/"))) for folder in private if len(folder) > 1]
    return re.compile(b"|".join([OF_SOMEBODY.pattern, *known]))


def private_folders(top: Path) -> list[str]:
    """The folders of this machine that no file of a wheel may name: the project's, Python's and the user's."""
    return [str(top), sys.prefix, os.path.expanduser("~")]  # noqa: PTH111
