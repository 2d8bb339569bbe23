"""``kernelwright explain``: says which variant a call would run, and why not the others.

The library of the package decides, as in a call. It gets arrays that have no memory: only their dtypes, shapes and
alignments are looked at, and nothing runs.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from ..core.dtype import Dtype
from ..core.errors import KernelwrightError, Where, shown
from ..core.exported import Exported
from .command import Command, argument

WHERE = Where(stage="explain")
ARRAY = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<sizes>[\d, ]*)\](?:@(?P<alignment>\d{1,4}))?")
NUMBERS: dict[str, Any] = {"None": None, "True": True, "False": False}
DEVICES = {"cpu": 1, "cuda": 2}
"""Kinds of devices, as DLPack numbers them (dlpack.h, ``DLDeviceType``)."""

ALIGNED = 1 << 20
"""The address of arrays, which nobody reads."""


def array_of(dtype: Dtype, shape: Sequence[int], device: tuple[int, int], alignment: int) -> Exported:
    """An array that has no memory, as libraries of arrays export theirs."""
    steps = [*accumulate([1, *reversed(shape[1:])], lambda one, other: one * other)][::-1] if shape else []
    return Exported(ALIGNED + alignment, device, (dtype.code, dtype.bits, dtype.lanes), shape, steps)


def value_of(text: str, device: tuple[int, int]) -> Any:
    """The argument that a word of the command line stands for.

    Raises:
        KernelwrightError: it stands for none.
    """
    if text in NUMBERS:
        return NUMBERS[text]
    if match := ARRAY.fullmatch(text):
        sizes = [int(size) for size in match["sizes"].split(",")] if match["sizes"].strip() else []
        return array_of(Dtype.parse(match["dtype"], WHERE), sizes, device, int(match["alignment"] or 0))
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    remedy = "write float32[64,128], a number, None, True or False, or name=float32[64,128]"
    raise KernelwrightError(f"{shown(text)} is no argument of a call", WHERE, remedy)


def arguments_of(words: Sequence[str], device: tuple[int, int]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call: by position, and by name."""
    named = {name: value_of(text, device) for name, is_named, text in (w.partition("=") for w in words) if is_named}
    return [value_of(word, device) for word in words if "=" not in word], named


def kernel_of(package: str, name: str) -> Any:
    """A kernel of a package, which is imported.

    Arguments:
        package: its import name, or the path of its folder.

    Raises:
        KernelwrightError: it cannot be imported, or has no such kernel.
    """
    folder = Path(package)
    if folder.is_dir() and (folder / "manifest.json").is_file():
        sys.path.insert(0, str(folder.resolve().parent))
        package = folder.resolve().name
    try:
        module = importlib.import_module(package)
        kernels = sorted(module.manifest()["kernels"])
    except (ImportError, AttributeError, ValueError) as error:
        remedy = "name the folder of a built package, such as build/acme_kernels, or one that is installed"
        raise KernelwrightError(f"{shown(package)} is no package of kernels: {error}", WHERE, remedy) from error
    if name not in kernels:
        raise KernelwrightError(f"{package} has no kernel {shown(name)}", WHERE, f"it has {', '.join(kernels)}")
    kernel = getattr(module, name)
    if not hasattr(kernel, "choice"):
        remedy = "build the package with the backend tvm_ffi first in backends"
        raise KernelwrightError(f"the default backend of {package} does not tell what it chooses", WHERE, remedy)
    return kernel


def explained(kernel: Any, arguments: Sequence[Any], named: dict[str, Any]) -> Iterator[tuple[bool, str]]:
    """The lines of the answer, each with whether it is of what runs: which variant runs, and why not each other one."""
    chosen = None
    try:
        choice = kernel.choice(*arguments, **named)
        chosen = choice.config
        yield True, f"runs {choice.variant}: {choice.reason}"
    except (TypeError, ValueError, RuntimeError) as error:
        yield False, f"no variant runs: {error}"
    for config in kernel.variants:
        if config != chosen:
            try:
                kernel.variant(**config).choice(*arguments, **named)
                why = "it fits, and another one comes first" if chosen is not None else "it fits if it is named"
            except (TypeError, ValueError, RuntimeError) as error:
                why = _reason(str(error))
            yield False, f"not {_words(config)}: {why}"


def _reason(message: str) -> str:
    """What a refusal says of one variant: what it expects, or the line that says what is wrong."""
    lines = [line.strip() for line in message.splitlines()]
    expects = [line.partition(" expects: ")[2] for line in lines if " expects: " in line]
    return f"it expects {expects[0]}" if expects else lines[0].partition(": ")[2] or lines[0]


def _words(config: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in config.items()) or "default"


def device_of(text: str) -> tuple[int, int]:
    """The device that a word names, as DLPack numbers it; for argparse."""
    kind, _, number = text.partition(":")
    if kind not in DEVICES or not re.fullmatch(r"\d{0,3}", number):
        raise argparse.ArgumentTypeError(f"{text!r} is no device, such as cpu or cuda:0")
    return DEVICES[kind], int(number or 0)


def run(options: argparse.Namespace) -> int:
    """Print which variant a call would run, and why not the others; exit status 1 if none runs."""
    kernel = kernel_of(options.package, options.kernel)
    arguments, named = arguments_of(options.arguments, options.device)
    lines = list(explained(kernel, arguments, named))
    for _, line in lines:
        print(line)
    return 0 if any(runs for runs, _ in lines) else 1


COMMAND = Command(
    "explain",
    "say which variant a call would run, and why not the others; nothing runs",
    run,
    (
        argument("package", "folder of a built package, or the import name of an installed one", metavar="PACKAGE"),
        argument("kernel", "one of its kernels", metavar="KERNEL"),
        argument(
            "arguments",
            "those of the call: float32[64,128], float16[8]@2 for an array that is aligned to 2 bytes only, a number, "
            "None, True or False; by position, or as name=float32[64,128]",
            metavar="ARGUMENT",
            nargs="*",
        ),
        argument("--device", "where the arrays are: cpu or cuda:0 (default: cpu)", type=device_of, default=(1, 0)),
    ),
    {1: "no variant would run"},
)
