"""``images.s``: the assembler text that embeds the device code in a kernel's library."""

from __future__ import annotations

from .c_text import c_string
from .plan import KernelPlan


def images_text(kernel: KernelPlan) -> str:
    """The text of images.s, which embeds all images; their paths are relative to the assembler's working folder.

    A zero byte follows each image, because the driver takes PTX as a C string. A split kernel embeds no images. Those
    of sources with host code of their own are in their objects.
    """
    lines = [f"/* The device code of kernel {kernel.name}. Written by Kernelwright. */"]
    lines += ['.section .rodata.kernelwright, "a", @progbits']
    for number, variant in enumerate(kernel.variants):
        for unit in variant.of("cuda"):
            for arch, path in () if kernel.split or unit.exported else unit.images.items():
                symbol = image_symbol(number, arch)
                lines += [".balign 64", f".globl {symbol}", f".hidden {symbol}", f"{symbol}:"]
                lines += [f".incbin {c_string(path)}", ".byte 0"]
    return "\n".join([*lines, '.section .note.GNU-stack, "", @progbits', ""])


def image_symbol(number: int, arch: str) -> str:
    """The symbol of the image of a variant for an arch."""
    return f"kw_image_{number}_{arch}"
