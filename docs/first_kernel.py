"""Runs a kernel of the built package on the CPU, and shows the result beside NumPy's."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "build"))

from kw_kernels import softmax

x = np.array([[1.0, 2.0, 3.0, 4.0]], dtype=np.float32).repeat(250, axis=1)
exponentials = np.exp(x - x.max(axis=1, keepdims=True))
expected = exponentials / exponentials.sum(axis=1, keepdims=True)

y = np.from_dlpack(softmax(x))

print("softmax, kernel:", y[0, ::250])
print("softmax, NumPy: ", expected[0, ::250])
print("largest difference:", np.abs(y - expected).max())
