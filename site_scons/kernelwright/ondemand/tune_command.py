"""``softmax.tune(...)``, ``softmax.bench(...)``: these commands for a kernel of a file, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..core.errors import KernelwrightError, SettingsError, Where
from .options import Options

PACKAGE_PARENT = Path(__file__).resolve().parents[2]

PASSED_ON = {
    "cache_dir": "KERNELWRIGHT_CACHE_DIR",
    "num_workers": "KERNELWRIGHT_NUM_WORKERS",
    "archs": "KERNELWRIGHT_ARCHS",
}
"""Options of ``using`` that count for a tuner -> the variable by which it learns of them."""

IGNORED = ("targets", "backend", "verbose", "record", "clear_cache", "dump_ir", "monitor")
"""Options that make no difference for what is measured."""


def run_command(
    command: str,
    kernel: str,
    path: Path,
    options: Options,
    sizes: Mapping[str, Iterable[int]] | Sequence[str] | None,
    **given: str | bool | Sequence[str] | None,
) -> None:
    """Run a command, and show what it says.

    Arguments:
        command: ``tune`` or ``bench``.
        kernel, path: the kernel, and its definition file.
        options: those of ``using``.
        sizes: see ``Compilable.tune``.
        given: the command's options by name; those that are None, False or empty are left out.

    Raises:
        SettingsError: an option of ``using`` does not count for what is measured, which is the project as it is.
        KernelwrightError: it failed; it has said why.
    """
    where = Where(kernel, stage=command, location=str(path))
    used = {name: value for name, value in vars(options).items() if value is not None}
    for name in sorted(used.keys() - {*PASSED_ON, *IGNORED}):
        message = f"{kernel}.using({name}=...) does not count for {command}, which is for the project's settings"
        raise SettingsError(message, where, f"write it into pyproject.toml or the definition, and {command} that")
    target = (options.named_targets or ("",))[0]
    given["device"] = given.get("device") or {"llvm": "cpu", "cuda": "cuda:0"}.get(target)
    given["sizes"] = [f"{n}={','.join(map(str, v))}" for n, v in sizes.items()] if isinstance(sizes, Mapping) else sizes
    arguments: list[str] = []
    for name, value in given.items():
        if value is True:
            arguments.append(f"--{name}")
        elif value:
            arguments += [f"--{name}={text}" for text in ([value] if isinstance(value, str) else value)]
    named = {PASSED_ON[name]: value for name, value in used.items() if name in PASSED_ON}
    texts = {name: ",".join(value) if isinstance(value, tuple) else str(value) for name, value in named.items()}
    status = _run(command_of(command, [kernel, f"--file={path}", *arguments]), environment_of(texts))
    if status:
        raise KernelwrightError(f"kernelwright {command} ended with exit status {status}; it says why above", where)


def command_of(command: str, arguments: Sequence[str]) -> list[str]:
    """A command of this installation, with some arguments."""
    return [sys.executable, "-m", "kernelwright", command, *arguments]


def environment_of(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of such a command: those of this process, the path of our code, and some more."""
    paths = [str(PACKAGE_PARENT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **(more or {}), "PYTHONPATH": os.pathsep.join(paths)}


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Exit status of a command whose output goes where that of this process goes, be it a notebook."""
    with subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                sys.stdout.write(line)
            return process.wait()
        except BaseException:  # Ctrl-C in a notebook does not reach its children
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
