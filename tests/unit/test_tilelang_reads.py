"""The process of TileLang tells what it used of a project; here without TileLang."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kernelwright.core.errors import ToolchainError
from kernelwright.lower import tilelang_process

USE = """
import importlib.util, json, math, sys
spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
root, file = sys.argv[2:]
reads = worker.Reads(root)
reads.install()
try:
    worker._function_of({"file": file, "function": "f", "root": root})
except ModuleNotFoundError as error:
    assert error.name == "tilelang", error
print(json.dumps([reads.files, sys.modules["_math"].ANSWER]))
"""

SOURCE = """\
import os
import values
from parts import one
try:
    import fast
except ImportError:
    pass
ANSWER = [values.VALUE, one.VALUE, open(os.path.dirname(__file__) + "/data.txt").read(), os.listdir("sizes")]
open("made.txt", "w").close()
open("made.txt").close()
"""


def test_what_a_source_imports_reads_lists_and_asks_for_in_vain_is_told(tmp_path: Path):
    files = {
        "kernels/math.py": SOURCE,  # Python's own module of that name stays
        "kernels/data.txt": "data",
        "values.py": "VALUE = 3",
        "parts/__init__.py": "",
        "parts/one.py": "VALUE = 1",
        "sizes/128": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    # Bytecode of another source, with the time and the size of this one.
    values = tmp_path / "values.py"
    values.write_text("VALUE = 2")
    subprocess.run([sys.executable, "-c", "import values"], cwd=tmp_path, check=True)
    stat = values.stat()
    values.write_text("VALUE = 3")
    os.utime(values, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    # Isolated, as nothing may come from the folder that the process runs in but by its own doing.
    command = [sys.executable, "-I", "-c", USE, str(tilelang_process.PROGRAM), str(tmp_path)]
    done = subprocess.run(
        [*command, str(tmp_path / "kernels/math.py")], cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True
    )
    found, answer = json.loads(done.stdout)

    assert answer == [3, 1, "data", ["128"]]
    assert found.pop(f"{tmp_path}/sizes/") is None
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items() if name != "sizes/128"}
    names = {os.path.relpath(path, tmp_path): digest for path, digest in found.items()}
    assert {name: digest for name, digest in names.items() if digest} == digests
    absent = {name for name, digest in names.items() if not digest}
    assert {"kernels/values.py", "kernels/parts/__init__.py", "kernels/fast.py", "fast.py"} <= absent
    assert "made.txt" not in names


def test_a_process_that_has_ended_is_told_once_and_started_anew(tmp_path: Path):
    python = tmp_path / "python"
    python.write_text("""#!/bin/sh
test -e "$0.begun" || { touch "$0.begun"; echo '{"version": "1"}'; echo "out of memory" >&2; exit 9; }
echo '{"version": "2"}'
read request
echo '{"lowered": {}}'
""")
    python.chmod(0o755)
    process = tilelang_process.process_of(str(python))
    with pytest.raises(ToolchainError, match="ended with exit status 9") as caught:
        process.ask({"text": "x" * 100_000})
    assert caught.value.detail == "out of memory"
    assert tilelang_process.process_of(str(python)).ask({}) == {"lowered": {}}
