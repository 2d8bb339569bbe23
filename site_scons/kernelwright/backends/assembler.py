"""Functions in assembler for each family of CPUs: what sources call of the driver, and what kernels call of sources.

A function of the driver is looked for at its first call, and gets the arguments of that call. Registers for
floating-point numbers are not kept meanwhile: except for three deprecated ones, no function of the driver takes such a
number by value (cuda.h of CUDA 13).
"""

from __future__ import annotations

from typing import NamedTuple


class Texts(NamedTuple):
    """The texts for a family.

    Arguments:
        driver: what all functions of the driver need.
        of_driver: a function ``name`` of the driver.
        function: a function ``symbol`` of a source library, which goes on in the one that sources export.
        caller: a function ``symbol`` that hands its four arguments on, with the operator ``name`` as the fifth.
        optional: what calls of a function ``name`` get to with the linker's ``--wrap``: the function, if the process
            has it, or else a status of 1.
    """

    driver: str
    of_driver: str
    function: str
    caller: str
    optional: str


HEAD = """\
/* What sources call of the CUDA driver. Written by Kernelwright. */
.section .note.GNU-stack, "", @progbits
.text
"""

# A call leaves the stack 8 bytes off its alignment, and seven registers make up for it.
X86_64 = Texts(
    HEAD
    + """\
/* Finds a function by its name (%rax), notes where it is (%r11), and goes on there with the arguments of the call. */
kw_find_in_driver:
  pushq %rdi
  pushq %rsi
  pushq %rdx
  pushq %rcx
  pushq %r8
  pushq %r9
  pushq %r11
  movq %rax, %rdi
  call kw_driver_function@PLT
  popq %r11
  popq %r9
  popq %r8
  popq %rcx
  popq %rdx
  popq %rsi
  popq %rdi
  movq %rax, (%r11)
  jmp *%rax
""",
    """
.text
.globl {name}
.hidden {name}
.type {name}, @function
{name}:
  movq kw_place_of_{name}(%rip), %rax
  testq %rax, %rax
  je 1f
  jmp *%rax
1:
  leaq kw_name_of_{name}(%rip), %rax
  leaq kw_place_of_{name}(%rip), %r11
  jmp kw_find_in_driver
.section .rodata
kw_name_of_{name}: .asciz "{name}"
.local kw_place_of_{name}
.comm kw_place_of_{name}, 8, 8
""",
    """
.section .text.{symbol}, "ax", @progbits
.globl {symbol}
.type {symbol}, @function
{symbol}:
  jmp {exported}@PLT
""",
    """
.text
.globl {symbol}
.type {symbol}, @function
{symbol}:
  leaq kw_operator_{name}(%rip), %r8
  jmp kw_call_operator@PLT
.section .rodata
kw_operator_{name}: .asciz "{name}"
""",
    """
.text
.weak __real_{name}
.globl __wrap_{name}
.hidden __wrap_{name}
.type __wrap_{name}, @function
__wrap_{name}:
  movq __real_{name}@GOTPCREL(%rip), %rax
  testq %rax, %rax
  je 1f
  jmp *%rax
1:
  movl $1, %eax
  ret
""",
)

# x16 and x17 are free for such code between a caller and its function (AAPCS64).
AARCH64 = Texts(
    HEAD
    + """\
/* Finds a function by its name (x16), notes where it is (x17), and goes on there with the arguments of the call. */
kw_find_in_driver:
  stp x29, x30, [sp, #-96]!
  mov x29, sp
  stp x0, x1, [sp, #16]
  stp x2, x3, [sp, #32]
  stp x4, x5, [sp, #48]
  stp x6, x7, [sp, #64]
  str x17, [sp, #80]
  mov x0, x16
  bl kw_driver_function
  mov x16, x0
  ldr x17, [sp, #80]
  str x16, [x17]
  ldp x0, x1, [sp, #16]
  ldp x2, x3, [sp, #32]
  ldp x4, x5, [sp, #48]
  ldp x6, x7, [sp, #64]
  ldp x29, x30, [sp], #96
  br x16
""",
    """
.text
.globl {name}
.hidden {name}
.type {name}, @function
{name}:
  adrp x17, kw_place_of_{name}
  add x17, x17, :lo12:kw_place_of_{name}
  ldr x16, [x17]
  cbz x16, 1f
  br x16
1:
  adrp x16, kw_name_of_{name}
  add x16, x16, :lo12:kw_name_of_{name}
  b kw_find_in_driver
.section .rodata
kw_name_of_{name}: .asciz "{name}"
.local kw_place_of_{name}
.comm kw_place_of_{name}, 8, 8
""",
    """
.section .text.{symbol}, "ax", @progbits
.globl {symbol}
.type {symbol}, @function
{symbol}:
  b {exported}
""",
    """
.text
.globl {symbol}
.type {symbol}, @function
{symbol}:
  adrp x4, kw_operator_{name}
  add x4, x4, :lo12:kw_operator_{name}
  b kw_call_operator
.section .rodata
kw_operator_{name}: .asciz "{name}"
""",
    """
.text
.weak __real_{name}
.globl __wrap_{name}
.hidden __wrap_{name}
.type __wrap_{name}, @function
__wrap_{name}:
  adrp x16, :got:__real_{name}
  ldr x16, [x16, :got_lo12:__real_{name}]
  cbz x16, 1f
  br x16
1:
  mov w0, #1
  ret
""",
)

ASSEMBLER = {"x86_64": X86_64, "aarch64": AARCH64}
"""The texts by the name of the family."""
