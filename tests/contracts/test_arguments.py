"""Which calls a kernel takes and what it makes, as its library says in C and ``runtime/arguments.py`` in Python.

Both get the same kernels, and the same calls; what one says, the other has to say word for word.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernelwright.runtime.arguments import Signatures
from kernelwright.runtime.loader import gaps_text
from kernelwright.runtime.size import INT32_LIMIT
from support.launcher_build import build, c_unit, plan
from support.matching import KERNELS, MISSING, Large, described, entry_of, f16, f32, outputs_of, signatures_of

DOES_NOTHING = "BEGIN (void)argument; (void)self; (void)count; (void)result; (void)tensor; END"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The compiled dispatchers. The kernels do nothing, which is all that is asked of them."""
    import tvm_ffi

    folder, made = tmp_path_factory.mktemp("arguments"), {}
    for name in KERNELS:
        units = [c_unit(folder, DOES_NOTHING, data) for data in signatures_of(name)]
        made_partially = replace(plan(name, *units, outputs=outputs_of(name)), gaps=gaps_text(MISSING.get(name, [])))
        library = build(folder, made_partially)
        made[name] = tvm_ffi.load_module(str(library))[name]
    return made


def made_in_c(function: Any, arguments: tuple[Any, ...]) -> list[tuple[str, tuple[int, ...]]]:
    result = function(*arguments)
    tensors = [] if result is None else [result] if hasattr(result, "dtype") else list(result)
    return [(str(tensor.dtype), tuple(tensor.shape)) for tensor in tensors]


def made_in_python(name: str, arguments: tuple[Any, ...]) -> list[tuple[str, tuple[int, ...]]]:
    made = Signatures(name, entry_of(name)).choose([described(a) for a in arguments]).outputs()
    return made if len(arguments) < len(KERNELS[name][0]["arguments"]) else []


def gaps(n: int, m: int) -> np.ndarray:
    """Rows with as much room behind each as it has elements."""
    return np.zeros((n, 2 * m), np.bool_)[:, :m]


FITTING = [
    ("saxpy", (2.0, f32(3), f32(3))),
    ("saxpy", (2, f32(0), f32(0))),
    ("saxpy", (True, f32(3), f32(3), f32(3))),
    ("rms_norm", (f32(5, 128), f32(128))),
    ("rms_norm", (f16(0, 64), f16(64))),
    ("windows", (f32(7, 3), 2)),
    ("windows", (f32(9, 1), 4)),
    ("windows", (f32(9, 4), 9)),
    *(("flags", (True, kind(-128), kind(255), np.zeros(2, np.bool_))) for kind in (int, np.int64)),
    ("copied", (f32(3),)),
    ("product", (f32(2, 3), f32(5, 3))),
    ("product", (f32(2, 3), f32(3, 5))),
    *(("masked", (f32(2, 3), b, *mask)) for b in (f32(5, 3), f32(3, 5)) for mask in ((), (None,))),
    ("masked", (f32(2, 3), f32(5, 3), f32(2))),
    ("masked", (f32(3, 3), f32(3, 3), f32(3))),
    ("masked", (f32(2, 3), f32(5, 3), None, f32(2, 5))),
    ("classes", (np.zeros(32, np.int8),)),
    ("classes", (np.zeros((3, 3), np.int8),)),
    *(("large", (x, x)) for x in (Large(INT32_LIMIT, 1), Large(INT32_LIMIT, 0), Large(65536, 32767))),
    ("large", (Large(1, INT32_LIMIT), Large(1, INT32_LIMIT))),
    ("strided", (Large(INT32_LIMIT, 1),)),
    *(("limits", (gaps(n, 3), 2)) for n in (2, 16, 18, 64)),
    *(("leading", (None, f32(*lead, 6), f32(3))) for lead in ((), (5,), (2, 1, 3), (2, 0), (9, 9, 9))),
    ("leading", (f32(2, 3), f32(2, 3, 4), f32(2, 3, 8), f32(4), f32(2, 3, 4))),
    *(("leading", (None, f32(*shape)[..., :6], f32(3))) for shape in ((2, 3, 9), (9,), (1, 1, 9), (5, 0, 9))),
    ("leading", (None, f32(3, 2, 6)[:, :1], f32(3))),
    *(("limits", (gaps(16, 3), k)) for k in (True, -(2**63) + 1)),
    *(("gated", (f32(4, size),)) for size in (0, 6, 12)),
    *(("gated", (f16(4, size),)) for size in (1, 3, 99)),
    *(("gated", (np.zeros((4, size), np.bool_),)) for size in (32, 63, 64)),
    ("gated", (f32(4, 6), f32(4, 3))),
]


@pytest.mark.parametrize(("name", "arguments"), FITTING)
def test_a_call_is_taken_and_outputs_are_made_alike(
    libraries: dict[str, Any], name: str, arguments: tuple[Any, ...]
) -> None:
    assert made_in_c(libraries[name], arguments) == made_in_python(name, arguments)


WRONG = [
    ("saxpy", (2.0, f32(3))),
    ("saxpy", (2.0, f32(3), f32(3), f32(3), f32(3))),
    ("saxpy", (2.0, 3.0, f32(3))),
    ("saxpy", (2.0, f32(3), 3)),
    ("saxpy", (2.0, f32(3), True)),
    ("saxpy", (2.0, f32(3), None)),
    ("saxpy", (2.0, f32(3), "a")),
    ("saxpy", ("a", f32(3), f32(3))),
    ("saxpy", (None, f32(3), f32(3))),
    ("saxpy", (2.5, f32(3), f16(3))),
    ("saxpy", (1e30, f32(3, 1), f32(3))),
    ("rms_norm", (f32(5, 127), f32(127))),
    ("rms_norm", (f32(5, 128), f16(128))),
    ("rms_norm", (f32(5, 128), f32(64), f32(5, 128))),
    ("rms_norm", (f32(5, 64), f32(64), f32(5, 128))),
    ("rms_norm", (f32(5, 64), f32(64), f16(5, 64))),
    ("rms_norm", (f32(5, 64), f32(64), f32(5, 64, 1))),
    ("windows", (f32(9, 4), 0)),
    ("windows", (f32(1, 1), 4)),
    ("windows", (f32(9, 4), 2**31)),
    ("windows", (f32(9, 4), 1.5)),
    ("flags", (True, 128, 0, np.zeros(2, np.bool_))),
    ("flags", (True, -129, 0, np.zeros(2, np.bool_))),
    ("flags", (True, 0, -1, np.zeros(2, np.bool_))),
    ("flags", (True, 0, 256, np.zeros(2, np.bool_))),
    ("flags", (True, 0, 0)),
    ("product", (f32(3, 3), f32(3, 3))),
    ("product", (f32(2, 3), f32(5, 7))),
    ("product", (f32(2, 3), f32(3, 3), f32(2, 3))),
    *(("masked", (f32(3, 3), f32(3, 3), *mask)) for mask in ((), (None,))),
    ("masked", (f32(2, 3), f32(3, 5), f32(2))),
    ("masked", (f32(2, 3), f32(5, 3), f16(2))),
    ("masked", (f32(2, 3), f32(5, 3), 3)),
    ("masked", (None, f32(5, 3))),
    ("masked", (f32(2, 3),)),
    ("masked", (f32(2, 3), f32(5, 3), None, None)),
    ("masked", (f32(2, 3), f32(5, 3), None, f32(2, 4))),
    ("classes", (np.zeros(24, np.int8),)),
    *(("large", (x, x)) for x in (Large(INT32_LIMIT + 1, 1), Large(1, INT32_LIMIT + 1), Large(65537, 32767))),
    ("large", (Large(1, 1), Large(INT32_LIMIT + 1, 0))),
    ("strided", (Large(65537, 32767),)),
    ("large", (Large(-1, 2), Large(1, 1))),
    ("longer", (Large(INT32_LIMIT, 1),)),
    ("longer", (Large(32767, 65536),)),
    *(("limits", (gaps(*shape), k)) for shape, k in (((66, 3), 2), ((17, 3), 4), ((4, 3), 3), ((4, 3), False))),
    *(("limits", (gaps(4, 3), k)) for k in (0, 2**63 - 4)),
    *(("gated", (f32(4, size),)) for size in (1, 4, 7)),
    *(("gated", (f16(4, size), f16(4, 2))) for size in (0, 2, 101)),
    *(("gated", (np.zeros((4, size), np.bool_),)) for size in (0, 31)),
    ("gated", (f32(4, 6, 1),)),
    *(
        ("leading", (None, x, f32(3)))
        for x in (f32(3, 2, 6)[:, ::-1], f32(3, 4, 6)[:, :2], f32(2, 3, 6).transpose(1, 0, 2))
    ),
    *(("leading", (None, f32(*shape), f32(3))) for shape in ((), (50, 30, 6))),
    *(("leading", (f32(*shape), f32(2, 3, 6), f32(3))) for shape in ((3, 2, 3), (6, 3), (3,), (), (1, 2, 3, 3))),
    *(("leading", (f32(*sums), None, f32(2, 3, 6), f32(3), f32(2, 3, 3))) for sums in ((6,), (), (3, 2))),
    ("leading", (None, f16(2, 3, 6), f32(3))),
    ("limits", (np.zeros((4, 6), np.bool_), 2)),
    ("limits", (gaps(66, 3), 2, np.zeros(66, np.bool_))),
    ("limits", (gaps(66, 3), 2.5)),
    ("limits", (np.zeros((3, 4, 6), np.bool_)[0], 2)),
]


@pytest.mark.parametrize(("name", "arguments"), WRONG)
def test_a_call_is_refused_in_the_same_words(libraries: dict[str, Any], name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError)) as in_c:
        made_in_c(libraries[name], arguments)
    with pytest.raises((TypeError, ValueError)) as in_python:
        made_in_python(name, arguments)
    assert (str(in_python.value), in_python.type) == (str(in_c.value), in_c.type)
    assert ("sm_80" in str(in_c.value)) == (name in MISSING)
