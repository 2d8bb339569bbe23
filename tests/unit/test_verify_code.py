"""The code in a wheel is for the archs that its manifest says; checked with code that no tool has made."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from kernelwright.compilers.fatbin import CUBIN, PTX
from kernelwright.package.manifest import sealed_document
from kernelwright.wheel.archive import write_wheel
from kernelwright.wheel.project import Project, read_project
from kernelwright.wheel.verify import device_archs, gaps_of, verify_together, verify_wheel
from test_fatbin_images import A, container, image

TIME = 1_700_000_000
PTX_CODE = b"//\n.version 8.0\n.target %s\n.address_size 64\n"


def elf(machine: int, flags: int, abi: int = 8) -> bytes:
    """The header of an ELF file, as far as it is looked at."""
    header = bytearray(64)
    header[:9] = b"\x7fELF\x02\x01\x01\x41" + bytes([abi])
    header[18:20], header[48:52] = machine.to_bytes(2, "little"), flags.to_bytes(4, "little")
    return bytes(header)


def cubin(number: int, abi: int = 8) -> bytes:
    return elf(190, number << 8 | 2 if abi >= 8 else 0x500 | number, abi)


LIBRARY = b"built for llvm (x86-64, x86-64-v3) " + cubin(80) + PTX_CODE % b"sm_80"
"""What a library has in it that is looked at."""

ARCHS = ["x86-64", "x86-64-v3", "sm_80", "compute_80"]


@pytest.mark.parametrize(
    ("data", "archs"),
    [
        (b"", []),
        (cubin(80), ["sm_80"]),
        (cubin(121), ["sm_121"]),
        (cubin(86, abi=7), ["sm_86"]),
        (b"x" * 5 + cubin(90) + cubin(100), ["sm_90", "sm_100"]),
        (elf(62, 80 << 8), []),
        (b"x" + PTX_CODE % b"sm_90a", ["ptx sm_90"]),
        (cubin(80) + PTX_CODE % b"sm_80", ["sm_80", "ptx sm_80"]),
        (container(image(CUBIN, 90, cubin(90), flags=A)), ["sm_90a"]),
        (container(image(PTX, 80, PTX_CODE % b"sm_80")), ["ptx sm_80"]),
        (cubin(75) + container(image(CUBIN, 80, cubin(80))) + cubin(86), ["sm_75", "sm_80", "sm_86"]),
    ],
)
def test_code_says_what_it_is_for(data: bytes, archs: list[str]) -> None:
    assert list(device_archs(data)) == archs


@pytest.mark.parametrize("inside", [cubin(90), b"nothing", cubin(80) + cubin(90)])
def test_a_fatbin_with_other_code_than_it_says_is_damaged(inside: bytes) -> None:
    with pytest.raises(ValueError, match="a fatbin for sm_80 has code for"):
        list(device_archs(container(image(CUBIN, 80, inside))))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def kernel(*archs: str, library: str = "_lib/k.so", images: dict[str, str] | None = None) -> dict[str, Any]:
    listed = {arch: {"file": file, "sha256": "0" * 64} for arch, file in (images or {}).items()}
    units = [{}, {"images": listed}] if listed else [{}]
    return {"library": library, "variants": [{"slug": "s", "archs": list(archs), "units": units}]}


def wheel_of(
    folder: Path, files: dict[str, bytes], *, project: Project | None = None, tag: str = "any", **manifest: Any
) -> Path:
    """A wheel of the package ``demo`` with some files and a manifest that lists them."""
    folder.mkdir(parents=True, exist_ok=True)
    project = project or read_project(
        folder, {"project": {"name": "demo", "version": "1.0"}}, called_through=("nvrtc",)
    )
    inside = manifest.pop("inside", "demo")
    listed = {name: {"sha256": digest(content), "size": len(content)} for name, content in files.items()}
    document = {
        "package": "demo",
        "source": {"commit": "", "dirty": False},
        "kernels": {},
        "files": manifest.pop("listed", listed),
        **manifest,
    }
    path = folder / f"{project.name}-1.0-py3-none-{tag}.whl"
    content = {f"{inside}/{name}": data for name, data in files.items()}
    write_wheel(path, project, {**content, f"{inside}/manifest.json": sealed_document(document).encode()}, tag, TIME)
    return path


def problems(folder: Path, files: dict[str, bytes], **manifest: Any) -> list[str]:
    return verify_wheel(wheel_of(folder, files, **manifest))


def test_a_library_with_the_code_that_the_manifest_lists_is_well(tmp_path: Path) -> None:
    assert problems(tmp_path, {"_lib/k.so": LIBRARY}, kernels={"k": kernel(*ARCHS)}) == []
    assert problems(tmp_path, {"_lib/k.so": b"x"}, kernels={"k": kernel()}) == []
    assert problems(tmp_path, {}, kernels={"k": {"variants": []}}) == [], "a kernel without a library"


@pytest.mark.parametrize(
    ("archs", "found"),
    [
        (ARCHS[:3], ["kernel k has device code for ptx sm_80, which the manifest does not list"]),
        ([*ARCHS[:2], "compute_80"], ["kernel k has device code for sm_80, which the manifest does not list"]),
        ([*ARCHS, "sm_90a"], ["kernel k has no device code for sm_90, which the manifest lists"]),
        (ARCHS[1:], ["kernel k has code for x86-64, unlike the manifest"]),
        ([*ARCHS, "x86-64-v4"], ["kernel k lacks code for x86-64-v4, unlike the manifest"]),
    ],
)
def test_a_library_with_other_code_than_the_manifest_lists_is_named(
    tmp_path: Path, archs: list[str], found: list[str]
) -> None:
    assert problems(tmp_path, {"_lib/k.so": LIBRARY}, kernels={"k": kernel(*archs)}) == found


def test_code_of_all_variants_counts(tmp_path: Path) -> None:
    entry = kernel(*ARCHS[:2])
    entry["variants"] += kernel(*ARCHS[1:])["variants"]
    assert problems(tmp_path, {"_lib/k.so": LIBRARY}, kernels={"k": entry}) == []


def test_only_compressed_code_tells_an_arch_from_its_family(tmp_path: Path) -> None:
    packed = container(image(CUBIN, 90, cubin(90), flags=A))
    for archs, compress, found in [
        (["sm_90a"], {"compress": {"mode": "size"}}, []),
        (["sm_90"], {"compress": {"mode": "size"}}, ["no device code for sm_90,", "device code for sm_90a,"]),
    ]:
        said = problems(tmp_path, {"_lib/k.so": packed}, kernels={"k": kernel(*archs)}, **compress)
        assert len(said) == len(found) and all(part in line for part, line in zip(found, said, strict=True))
    assert problems(tmp_path, {"_lib/k.so": cubin(90)}, kernels={"k": kernel("sm_90a")}) == []


def test_a_damaged_fatbin_in_a_library_is_named(tmp_path: Path) -> None:
    damaged = container(image(CUBIN, 80, cubin(90)))
    (said,) = problems(tmp_path, {"_lib/k.so": damaged}, kernels={"k": kernel("sm_80")})
    assert said == "kernel k has damaged device code: a fatbin for sm_80 has code for sm_90 in it"


def test_two_kernels_with_one_library_are_refused(tmp_path: Path) -> None:
    kernels = {"a": kernel(*ARCHS), "b": kernel(*ARCHS)}
    assert problems(tmp_path, {"_lib/k.so": LIBRARY}, kernels=kernels) == ["kernel b has the library of another kernel"]


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ({}, "demo/a is not in the manifest"),
        ({"a": {"sha256": "0" * 64}}, "demo/a is not the file that the manifest lists"),
        ({"a": {"sha256": digest(b"x")}, "b": {"sha256": ""}}, "demo/b is in the manifest, and missing"),
        ({"a": {}}, "demo/manifest.json is not a manifest: files.a.sha256 is missing, expected a string"),
    ],
)
def test_files_are_those_that_the_manifest_lists(tmp_path: Path, listed: dict[str, Any], message: str) -> None:
    assert problems(tmp_path, {"a": b"x"}, listed=listed) == [message]


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"source": {"commit": ""}}, "source.dirty is missing, expected true or false"),
        ({"source": {"dirty": True}}, "source.commit is missing, expected a string"),
        ({"kernels": []}, "kernels is [], expected an object"),
        ({"kernels": {"k": {"variants": [{"slug": "s"}]}}}, "kernels.k.variants[0].archs is missing, expected a list"),
        ({"package": 1}, "package is 1, expected a string"),
    ],
)
def test_a_manifest_of_another_form_is_named(tmp_path: Path, manifest: dict[str, Any], message: str) -> None:
    assert problems(tmp_path, {}, **manifest) == [f"demo/manifest.json is not a manifest: {message}"]


def test_a_changed_manifest_is_damaged(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, {})
    text = sealed_document({"package": "demo"}).replace("demo", "dema")
    project = read_project(tmp_path, {"project": {"name": "demo", "version": "1.0"}})
    write_wheel(wheel, project, {"demo/manifest.json": text.encode()}, "any", TIME)
    assert verify_wheel(wheel) == ["demo/manifest.json is damaged: its digest does not fit"]


def test_device_code_in_files_is_for_the_archs_that_the_manifest_says(tmp_path: Path) -> None:
    place = {"device_code": {"folder": "_images", "packages": {}}}
    images = {"sm_90a": "k.cubin", "compute_80": "k.ptx", "sm_100a": "k.fatbin"}
    files = {
        "_lib/k.so": b"built for llvm (x86-64)",
        "_images/k.cubin": cubin(90),
        "_images/k.ptx": PTX_CODE % b"sm_80",
        "_images/k.fatbin": container(image(CUBIN, 100, cubin(100), flags=A)),
    }
    kernels = {"k": kernel("x86-64", *images, images=images)}
    assert problems(tmp_path, files, kernels=kernels, **place) == []
    files["_images/k.cubin"] = cubin(80)
    files["_images/k.ptx"] = b""
    files["_images/k.fatbin"] = container(image(CUBIN, 100, cubin(90), flags=A))
    assert problems(tmp_path, files, kernels=kernels, **place) == [
        "demo/_images/k.cubin has code for sm_80, and the manifest says sm_90a",
        "demo/_images/k.ptx has code for no arch, and the manifest says compute_80",
        "demo/_images/k.fatbin is damaged: a fatbin for sm_100a has code for sm_90 in it",
    ]


def test_a_split_package_has_an_extra_for_the_code_of_each_arch(tmp_path: Path) -> None:
    document = {"project": {"name": "demo", "version": "1.0"}}
    split = read_project(tmp_path, document, providers=("sm_80", "sm_90a"), called_through=("nvrtc",))
    images = {"sm_80": "a.cubin", "sm_90a": "b.cubin"}
    place = {
        "version": "1.0",
        "packages": {arch: f"demo_{arch}" for arch in images},
        "wheels": {"sm_80": "demo-sm-80", "sm_90a": "demo-sm-90a"},
    }
    options = {"kernels": {"k": kernel("x86-64", *images, images=images)}, "device_code": place}
    files = {"_lib/k.so": b"built for llvm (x86-64)"}
    assert problems(tmp_path, files, project=split, **options) == []
    assert problems(tmp_path, files, **options) == [
        f"it has no extra {arch} that installs demo-{arch}==1.0, which has its code for {arch.replace('-', '_')}"
        for arch in ("sm-80", "sm-90a")
    ]
    place["version"] = "1.1"
    assert len(problems(tmp_path, files, project=split, **options)) == 2, "the extras install another version"
    place["packages"] = {"sm_80": "demo_sm_80"}
    said = problems(tmp_path, files, project=split, **options)
    assert "device_code.packages.sm_90a is missing, expected a string" in said[-1]


def provider(folder: Path, files: dict[str, bytes], *, points: bool = True, needs: str = "demo==1.0") -> list[str]:
    """What is wrong with a wheel of device code for sm_80."""
    fields: dict[str, Any] = {"name": "demo-sm-80", "version": "1.0", "dependencies": [needs]}
    if points:
        fields["entry-points"] = {"kernelwright.device_code": {"demo_sm_80": "demo_sm_80"}}
    project = read_project(folder, {"project": fields}, called_through=("nvrtc",))
    return problems(folder, files, project=project, inside="demo_sm_80", arch="sm_80", version="1.0")


def test_every_file_of_a_wheel_of_device_code_is_for_its_arch(tmp_path: Path) -> None:
    good = {"__init__.py": b"", "k.cubin": cubin(80), "k.fatbin": container(image(CUBIN, 80, cubin(80)))}
    assert provider(tmp_path, good) == []
    place = "demo_sm_80/k"
    assert provider(tmp_path, {"k.cubin": cubin(90), "k.pyi": b""}) == [
        f"{place}.cubin has code for sm_90, and the wheel is for sm_80"
    ]
    assert provider(tmp_path, {"k.txt": b""}) == [f"{place}.txt has code for no arch, and the wheel is for sm_80"]
    assert provider(tmp_path, {"k.fatbin": container(image(CUBIN, 80, cubin(90)))}) == [
        f"{place}.fatbin is damaged: a fatbin for sm_80 has code for sm_90 in it"
    ]


def test_a_wheel_of_device_code_can_be_found_and_belongs_to_one_version(tmp_path: Path) -> None:
    code = {"k.cubin": cubin(80)}
    (said,) = provider(tmp_path, code, points=False)
    assert said.startswith("it has no entry point demo_sm_80 in the group kernelwright.device_code")
    for needs in ("demo>=1.0", "demo==1.1", "demo"):
        assert provider(tmp_path, code, needs=needs) == [
            "it does not depend on version 1.0 of demo, to which it belongs"
        ]


def test_code_for_a_processor_is_for_some_platform(tmp_path: Path) -> None:
    machine = elf(62, 0)
    assert problems(tmp_path, {"a.so": machine, "b.cubin": cubin(80)}) == [
        "demo/a.so is code for a CPU, and the name of the wheel says any platform"
    ]


def test_paths_of_the_machine_are_found_where_the_project_does_not_write_itself(tmp_path: Path) -> None:
    files = {"a.py": b"x = '/home/somebody/x.py'\n", "b.py": b"y = '/opt/mine/x'\n"}
    assert problems(tmp_path, files) == ["demo/a.py has a path of the machine that built it: /home/somebody/x.py"]
    found = verify_wheel(wheel_of(tmp_path, files), private=["/opt/mine/"])
    assert found[1] == "demo/b.py has a path of the machine that built it: /opt/mine"
    described = read_project(tmp_path, {"project": {"name": "demo", "version": "1.0", "description": "/home/x/y"}})
    assert problems(tmp_path, {}, project=described) == []


def test_what_a_partial_package_lacks_is_told(tmp_path: Path) -> None:
    gap = {"kernel": "k", "stage": "nvcc"}
    assert gaps_of(wheel_of(tmp_path, {}, missing=[gap, 3])) == [gap]
    assert gaps_of(wheel_of(tmp_path, {}, missing={})) == gaps_of(wheel_of(tmp_path, {})) == []


def test_wheels_without_a_manifest_have_nothing_to_do_with_each_other(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, {})
    project = read_project(tmp_path, {"project": {"name": "other", "version": "1.0"}})
    other = tmp_path / "other-1.0-py3-none-any.whl"
    for content in ({}, {"other/manifest.json": b"{"}, {"other/manifest.json": b"[]"}):
        write_wheel(other, project, content, "any", TIME)
        assert verify_together([wheel, other]) == [] == gaps_of(other)
        assert verify_wheel(other)
        os.unlink(other)  # noqa: PTH108
