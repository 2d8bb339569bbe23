"""Programs that stand in for others, as shell scripts."""

from __future__ import annotations

from pathlib import Path


def script(path: Path, body: str) -> Path:
    """Write a program, and the folder that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path
