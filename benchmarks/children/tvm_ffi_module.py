"""Compiles and loads sources with tvm-ffi's own builder: ``tvm_ffi_module.py FOLDER INCLUDE SOURCE...``.

FOLDER is where it builds, and where it finds what it built before. ``CUDA_HOME`` names the CUDA toolkit, and
``TVM_FFI_CUDA_ARCH_LIST`` the arch. It prints a JSON object with the seconds of the import, and of the rest.
"""

from __future__ import annotations

import json
import sys
import time

# tvm-ffi would import PyTorch where it is installed.
sys.modules["torch"] = None  # type: ignore[assignment]
start = time.perf_counter()
from tvm_ffi import cpp  # noqa: E402

imported = time.perf_counter()
folder, include, *sources = sys.argv[1:]
cuda = [source for source in sources if source.endswith(".cu")]
host = [source for source in sources if source not in cuda]
module = cpp.load("norm", cpp_files=host, cuda_files=cuda, extra_include_paths=[include], build_directory=folder)
assert module.get_function("rms_norm") is not None
print(json.dumps({"import_s": imported - start, "load_s": time.perf_counter() - imported}))
