"""The repository that a project is in: a git tree around its folder. git itself is not asked."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


@cache
def repository_around(folder: Path) -> Path | None:
    """The nearest folder with a ``.git``, of a folder and those around it; None: there is none.

    One that has the user's home folder in it counts as none: people keep their configuration in such a repository, and
    what else is at home is not a part of the project.
    """
    found = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)
    return None if found is None or Path(os.path.expanduser("~")).is_relative_to(found) else found  # noqa: PTH111
