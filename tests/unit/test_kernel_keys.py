"""What a kernel that is compiled on demand is known by, and what it keeps."""

from __future__ import annotations

import shutil
from hashlib import sha256
from pathlib import Path

from kernelwright.core.dependencies import EDITED
from kernelwright.core.errors import Where
from kernelwright.ondemand.build import Compiled, key_of_made, read_by
from kernelwright.ondemand.loaded import KernelLoader
from kernelwright.package.manifest import sealed_document
from kernelwright.runtime.loader import SCHEMA
from kernelwright.stages.stage import Stage
from kernelwright.state.entry import entry_key

KEY = "ab" * 32


def stage(outside: dict[str, str] | None = None, **later: str) -> Stage:
    return Stage("PTX", "scale", Where(), None, print, {}, [], later=later, outside=outside or {})


def test_a_kernel_is_made_of_what_all_its_stages_read() -> None:
    stages = [stage(a="1"), stage(), stage({"/runtime.a": "2"}, b="3")]
    assert read_by(stages) == {"a": "1", "/runtime.a": "2", "b": "3"}


def test_a_kernel_two_stages_of_which_read_a_file_differently_is_never_found_again() -> None:
    later = read_by([stage(a="1", b="1"), stage(a="1", b="2"), stage(a="1", b="1")])
    assert later == {"a": "1", "b": EDITED}
    keys = {key_of_made(KEY, later) for _ in range(3)}
    assert len(keys) == 3 and entry_key(KEY, later) not in keys
    assert key_of_made(KEY, {"a": "1"}) == entry_key(KEY, {"a": "1"})


def test_a_kernel_keeps_the_device_code_that_it_loads_later(tmp_path: Path) -> None:
    image = tmp_path / "images/scale/sm_80.cubin"
    image.parent.mkdir(parents=True)
    image.write_bytes(b"code")
    digest = sha256(b"code").hexdigest()
    listed = {"file": "scale/sm_80.cubin", "sha256": digest}
    variant = {"slug": "default", "units": [{"target": "cuda", "images": {"sm_80": listed}}]}
    document = {
        "schema": SCHEMA,
        "device_code": {"folder": "images", "packages": {}},
        "kernels": {"scale": {"variants": [variant]}},
        "files": {"images/scale/sm_80.cubin": {"sha256": digest}},
    }
    (tmp_path / "manifest.json").write_text(sealed_document(document))
    loader = KernelLoader(Compiled(tmp_path, KEY, {}, False), "scale")
    loader.provider("scale")
    shutil.rmtree(tmp_path)
    arch, path = loader.image("scale", "default", "sm_80", 0, 80)
    assert arch == "sm_80" and path.read_bytes() == b"code"
