"""Compiles matrix products with Triton alone: ``triton_matmul.py FOLDER``, which has ``_matmul.py``.

The same variants as in ``against_triton.py``, for sm_90a. Triton's cache is where ``TRITON_CACHE_DIR`` says. It prints
a JSON object with the seconds of the import, and of the compilation or the reading from the cache.
"""

from __future__ import annotations

import json
import sys
import time

start = time.perf_counter()
import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

imported = time.perf_counter()
sys.path.insert(0, sys.argv[1])
from _matmul import BLOCKS, matmul_kernel  # type: ignore[import-not-found]  # noqa: E402

SPECIAL, DIVISIBLE = (("a", "b", "c", "n", "k"), [["tt.divisibility", 16]])
for kind in ("fp16", "bf16"):
    types = {**dict.fromkeys("abc", f"*{kind}"), **dict.fromkeys("mnk", "i32"), **dict.fromkeys(BLOCKS, "constexpr")}
    for special in (SPECIAL, ()):
        attributes = {(place,): DIVISIBLE for place, name in enumerate(types) if name in special}
        source = ASTSource(matmul_kernel, types, BLOCKS, attributes)
        triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 3})
end = time.perf_counter()
print(json.dumps({"import": imported - start, "compile": end - imported}))
