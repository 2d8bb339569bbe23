"""Crash drills with a remote cache in read-write mode, which the killed builds fill and the next ones take from.

    python tests/drills/killed_with_remote.py [--moments 100] [--seed 1] [--jobs 2] [--kernels softmax,gemm] [--nginx]

The moments are those of ``crash.py``, and all that must hold after them there must hold here. Before a moment the
build cache is removed as there, and a random part of the objects of the remote cache: some of them, all, or none. In
the last case the whole build folder is removed instead. So the build that is killed takes, makes and writes. After it
this must hold, too:

- no object of the remote cache is damaged, and none was replaced;
- the next build makes only stages that neither cache had.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import crash
from crash import ROOT, Drill, DrillError, is_of_stage

sys.path.append(str(ROOT / "site_scons"))

from kernelwright.state.cache import BuildCache
from kernelwright.state.entry import ENTRY
from kernelwright.state.remote_objects import decompressed


class RemoteDrill(Drill):
    """A copy of the kernel library whose builds share a remote cache with those before them.

    Arguments:
        address: of the remote cache; empty: a folder beside the copy.
        objects: the folder with the objects; None: the same folder.
    """

    def __init__(
        self,
        folder: Path,
        kernels: list[str],
        jobs: int,
        seed: int,
        settings: list[str] | None = None,
        address: str = "",
        objects: Path | None = None,
    ) -> None:
        self.objects = objects or folder / "remote"
        remote = [f"REMOTE_CACHE={address or self.objects}", "REMOTE_MODE=read-write"]
        copy = folder / "copy"
        copy.mkdir()
        super().__init__(copy, kernels, jobs, seed, [*(settings or []), *remote])
        self._scratch = folder / "scratch"
        self._sound: set[Path] = set()
        self._there: set[str] = set()

    def prepare(self, number: int) -> str:
        size = super().prepare(number)
        part = self.random.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        for path in self.stored():
            if self.random.random() < part:
                path.unlink()
        if part == 0:
            shutil.rmtree(self.folder / "build", ignore_errors=True)
        # A build that has less to make takes less time, and so its moments come earlier.
        kind = f"{size}, {part}"
        self.seconds.setdefault(kind, self.seconds[size] if part else 3.0)
        return kind

    def stored(self) -> list[Path]:
        """The objects of the remote cache."""
        return [path for path in sorted(self.objects.rglob("*")) if ENTRY.fullmatch(path.name)]

    def entries(self) -> dict[Path, int | str]:
        found = super().entries()
        objects = {path: path.stat().st_ino for path in self.stored()}
        self._there = {path.name for path in (*found, *objects)}
        return {**found, **objects}

    def build(self) -> str:
        """A plain build, which makes only what neither cache has."""
        before = self._there
        output = super().build()
        new = {path for path in super().entries() if path.name not in before and is_of_stage(path)}
        made = re.search(r"(\d+) built(?: \((\d+) from the cache\))?", output)
        stages = int(made[1]) - int(made[2] or 0) if made else 0
        # PACKAGE is made by each build that changes anything.
        if before and stages > len(new) + 1:
            raise DrillError(f"{stages} stages were made, and the caches lacked {len(new)} of them:\n{output}")
        self._require_sound()
        return output

    def _require_sound(self) -> None:
        """Look at what is new in the remote cache."""
        for path in self.stored():
            if path not in self._sound:
                self._scratch.mkdir(exist_ok=True)
                entry = self._scratch / path.name
                try:
                    entry.write_bytes(decompressed(path.read_bytes()))
                    problem = BuildCache(self._scratch, 0, writable=False, owned=True).damage(entry)
                except ValueError as error:
                    problem = str(error)
                if problem is not None:
                    raise DrillError(f"a damaged object in the remote cache: {path.name}: {problem}")
                entry.unlink()
        self._sound = set(self.stored())


@contextlib.contextmanager
def server(folder: Path, used: bool) -> Iterator[tuple[str, Path | None]]:
    """Address of an nginx and the folder of its objects, if one is to be used."""
    if not used:
        yield "", None
        return
    sys.path.append(str(ROOT / "tests"))
    from remote.servers import nginx

    with nginx(folder) as started:
        yield started.address, folder / "root"


def main() -> None:
    """Run the drills."""
    parser = crash.parser(__doc__)
    parser.add_argument("--moments", type=int, default=100)
    parser.add_argument("--nginx", action="store_true", help="with a server, in place of a folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as top, server(Path(top, "nginx"), options.nginx) as (address, objects):
        folder = Path(top, "drill")
        folder.mkdir()
        print(RemoteDrill(folder, *crash.chosen(options), address=address, objects=objects).run(options.moments))


if __name__ == "__main__":
    main()
