"""What of others is in a package: which distributions have code in a kernel, and under which licences."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from kernelwright import frontends
from kernelwright.core.written import NVIDIA
from kernelwright.package.sbom import parts_of
from kernelwright.toolchain.contained import UNKNOWN, contained_in, license_in

TOOLS = {"tvm": {"tvm": "0.27", "tvm_ffi": "0.1"}, "nvcc": {"version": "13.0.88"}, "nvrtc 12.8": {"version": "12.8.93"}}


def test_each_front_end_whose_tool_writes_code_says_whose_that_is() -> None:
    assert {name for name in frontends.names() if not frontends.get(name).writes} == {"cuda", "torch"}


def test_a_package_has_each_part_once_and_only_what_its_kernels_have() -> None:
    cuda = {"target": "cuda"}
    tvm = ["apache-tvm", "0.27", "Apache-2.0", "code"]
    both = {"written": [tvm, ["cuda", "", NVIDIA, "headers"]], "variants": [{"units": [{"target": "llvm"}]}]}
    kernels = {"a": {"library": "a.so", **both}, "b": {"library": "b.so", **both}}
    names = [part["name"] for part in parts_of("1", TOOLS, kernels)]
    assert names == ["apache-tvm", "apache-tvm-ffi", "kernelwright"], "no code for GPUs, and nothing of CUDA"
    kernels["a"]["variants"] = [{"units": [cuda]}]
    found = [(part["name"], part["version"]) for part in parts_of("1", TOOLS, kernels)]
    assert ("cuda", "13.0.88") in found and ("cuda", "12.8.93") in found
    written = [["triton", "3.9.0", "MIT", "code"], ["libdevice", "", NVIDIA, "functions"]]
    triton = {"frontend": "triton", "written": written, "variants": [{"units": [cuda]}]}
    found = [(part["name"], part["version"]) for part in parts_of("1", TOOLS, {"c": triton})]
    assert found == [("kernelwright", "1"), ("libdevice", ""), ("triton", "3.9.0")]
    own = {"frontend": "cuda", "contains": [["acme", "2", "MIT"]], "variants": []}
    assert {"name": "acme", "version": "2", "license": "MIT"}.items() <= parts_of("1", TOOLS, {"d": own})[0].items()


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ("License-Expression: bsd-3-clause OR MIT", "BSD-3-Clause OR MIT"),
        ("License: MIT", "MIT"),
        ("License: Apache 2.0\nClassifier: License :: OSI Approved :: Apache Software License", "Apache-2.0"),
        ("License: see the file", UNKNOWN),
        ("Classifier: License :: OSI Approved :: BSD License", UNKNOWN),
        ("Classifier: Programming Language :: C", UNKNOWN),
    ],
)
def test_a_licence_is_an_expression_of_spdx_or_not_known(tmp_path: Path, fields: str, licence: str) -> None:
    (tmp_path / "METADATA").write_text(f"Metadata-Version: 2.4\nName: acme\nVersion: 2\n{fields}\n")
    assert license_in(tmp_path / "METADATA") == licence


def test_a_folder_belongs_to_the_distribution_that_has_its_files(tmp_path: Path, monkeypatch) -> None:
    header, info = tmp_path / "acme_headers/include/a.h", tmp_path / "acme-2.dist-info"
    for path, text in ((header, "int a;"), (info / "METADATA", "Name: acme\nVersion: 2\nLicense-Expression: MIT\n")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    digest = hashlib.sha256(b"int a;").hexdigest()
    (info / "RECORD").write_text(f"acme_headers/include/a.h,sha256={digest},6\nacme-2.dist-info/RECORD,,\n")
    (tmp_path / "strange/include").mkdir(parents=True)
    (tmp_path / "strange/include/b.h").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    (part,) = contained_in([header.parent, tmp_path / "strange/include", header.parent])
    assert part.shown == ["acme", "2", "MIT"] and part.recorded
