"""A compiler in another environment that only runs shell scripts: what it is asked, and the process that answers."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

from kernelwright.core.errors import LoweringError
from kernelwright.frontends.named_source import SourceRequest
from kernelwright.worker.elsewhere import serve_sources


@dataclass(frozen=True)
class Printed:
    """What a script prints."""

    text: str
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ScriptRequest(SourceRequest):
    """Run a script."""

    op: ClassVar[str] = "script"
    result: ClassVar[type[Printed]] = Printed
    cannot: ClassVar[str] = "no script runs"  # type: ignore[misc]
    script: str


def run(request: ScriptRequest, module: Any) -> Printed:
    done = subprocess.run(["/bin/sh", "-c", request.script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise LoweringError(f"sh ended with exit status {done.returncode}")
    return Printed(done.stdout.decode(errors="replace"))


def main() -> None:
    """Serve requests until stdin ends."""
    compiler: Any = SimpleNamespace(__file__="/compiler/__init__.py", __version__="0.1.15")
    serve_sources(lambda: compiler, {ScriptRequest: run})
