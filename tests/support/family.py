"""A process with children of many kinds, to see that all of them end."""

from __future__ import annotations

import sys
from pathlib import Path

from support.moments import ENDLESS, wait_for, wait_until_gone

MEMBERS = ("tool", "child", "grandchild", "other-group")


def family(folder: Path) -> str:
    """A script with children, a grandchild, and a child in a process group of its own, none of which ends by itself.

    It writes their numbers to files, and begins to wait when all are there.
    """
    (folder / "leave.py").write_text(
        "import os\nos.setpgid(0, 0)\nopen('other-group', 'w').write(f'{os.getpid()}.')\n"
        f"open('all-there', 'w').close()\nos.execlp('sh', 'sh', '-c', {'exec ' + ENDLESS!r})\n"
    )
    return f"""
cd {folder}; printf $PPID. > worker; printf $$. > tool; mkfifo all-there
{ENDLESS} & printf $!. > child
sh -c 'printf $$. > grandchild; {ENDLESS}; true' &
{sys.executable} -I -S leave.py &
cat all-there; until [ -s grandchild ]; do sleep 0.01; done; """


def number(path: Path) -> int:
    """The number of a process that a script writes to a file, with a dot behind it, once it is there."""
    wait_for(lambda: path.exists() and path.read_text().endswith("."), f"{path.name} does not start")
    return int(path.read_text().strip("."))


def require_gone(folder: Path) -> None:
    for name in MEMBERS:
        wait_until_gone(number(folder / name))
