"""Small definition files and pools for the tests of the workers."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from kernelwright.define.unit import unit_symbol
from kernelwright.processes.children import ForkServer
from kernelwright.processes.pool import WorkerPool
from kernelwright.processes.protocol import DiscoverRequest, LowerRequest

from support.moments import HANGS_AFTER_S

COPY = """\
from kernelwright import kernel
from tvm.script import tirx as T

@kernel
def {name}():
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("y"):
                j = T.axis.spatial(8, i)
                y[j] = x[j] * T.float32({factor})
    return main
"""

EMPTY = """\
from kernelwright import kernel
{top}

@kernel
def {name}():
    {body}
"""


def whole(value: Any) -> Any:
    """A record as JSON data with all of its fields, those that have their defaults among them."""
    if is_dataclass(value):
        return {each.name: whole(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: whole(item) for name, item in value.items()}
    return [whole(item) for item in value] if isinstance(value, (list, tuple)) else value


class Lent:
    """A fork server that outlives the pool which has it."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def end(self, grace_s: float = 0.0) -> None:
        pass


class Project:
    """A folder with definition files, and a pool of workers for it."""

    def __init__(self, folder: Path, size: int = 1, timeout_s: float = HANGS_AFTER_S) -> None:
        self.folder = folder
        self.printed: list[str] = []
        self.pool = WorkerPool(size, folder, timeout_s, on_output=lambda request, text: self.printed.append(text))

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def copy(self, name: str, factor: float = 2.0) -> str:
        """A definition file with one good kernel of that name."""
        return str(self.write(f"kernels/{name}.py", COPY.format(name=name, factor=factor)).relative_to(self.folder))

    def clear(self) -> None:
        """Remove all files, so that tests can share the workers."""
        for path in sorted(self.folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()

    def empty(self, name: str, top: str = "", body: str = "return None") -> str:
        """A definition file whose kernel has that body, with some code above it."""
        text = EMPTY.format(name=name, top=textwrap.dedent(top), body=textwrap.indent(body, "    ").strip())
        return str(self.write(f"kernels/{name}.py", text).relative_to(self.folder))

    def lend_to(self, other: Project) -> None:
        """Empty the folder, and lend the fork server, which has imported TVM, to another project in it."""
        self.discover(self.copy("ready"))
        assert self.pool._fork_server is not None
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        other.pool._fork_server = cast(ForkServer, Lent(self.pool._fork_server))

    def discover(self, file: str) -> dict[str, Any]:
        return whole(self.pool.call(DiscoverRequest(file)))

    def lower(
        self,
        file: str,
        kernel: str,
        target: str = "llvm",
        arch: str = "",
        slug: str = "default",
        config: dict[str, Any] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """The result of a lowering, with the files' contents under ``contents``; ``more`` is of the request."""
        out = self.folder / "out" / kernel / slug / target
        out.mkdir(parents=True, exist_ok=True)
        arch = arch or {"llvm": "x86-64-v3", "cuda": "sm_80"}[target]
        symbol = unit_symbol(kernel, slug, (), target, arch, False)
        whole = {"symbol": symbol, "config": config or {}, "target": target, "arch": arch, "out": str(out), **more}
        result = self.pool.call(LowerRequest(file, kernel, slug, **whole))
        return {**asdict(result), "contents": {name: (out / name).read_bytes() for name in result.files}}
