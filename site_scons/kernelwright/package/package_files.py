"""What the manifest in a wheel says, against the files: a build writes just these, and what they have in them fits.

The loader of a package checks what it is about to use. Here everything is checked, before anything is installed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from .. import backends
from ..backends.commands import LIBRARIES, NEEDED_BY_PATH, SOURCE_LIBRARY
from ..backends.description import description_in
from ..core.arch import CPU_LEVELS, FAMILIES, FAMILY_OF, TARGETS, CudaArch
from ..core.dtype import Dtype
from ..core.errors import KernelwrightError, Where, shown
from ..core.files import pretty_json
from ..core.records import Record, decoded
from ..core.signature import Argument
from ..core.version import VERSION
from ..define.debug import LEVELS
from ..define.kernel_options import is_relative
from ..define.names import is_name
from ..define.package_name import TAKEN, is_importable
from ..runtime.loader import DamageError, is_backend, is_entry, manifest_in
from ..runtime.provider import GROUP
from .assemble import generated, library_of, outputs, product_of, provider_package
from .content import PROVIDER_INIT
from .described import described, fields, requirements
from .device_code import arch_problems, image_problem, library_problem, own_code_problems
from .drivers import driver_problems, external, least_drivers, of_kernel
from .images import IMAGES, label_of, listed_images
from .manifest import (
    OF_SIZES,
    BuiltPackage,
    PackagedKernel,
    described_backends,
    sealed_document,
)
from .sbom import licence_problems
from .torch_operators import operator_problems
from .variant_checks import split_problems

MANIFEST = "manifest.json"

LAUNCHER = re.compile(rf"{LIBRARIES}/libkernelwright-[0-9a-f]{{16}}\.so")
RELEASE = re.compile(r"\d+(\.\d+)*((a|b|rc|\.dev|\.post)\d+)*")
DIGEST = re.compile(r"[0-9a-f]{64}")
COMMIT = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})?")
RUNTIME_MODULE = re.compile(r"_runtime/[a-z_]+\.py")
"""Modules that load kernels. Which ones there are depends on the version of Kernelwright that has built the wheel."""

CODE_FILE = re.compile(r".+\.(?:cubin|fatbin|ptx)")

OF_PACKAGE = (
    *("schema", "package", "version", "kernelwright", "machine", "source", "tools", "licenses", "backends", "compress"),
    *("device_code", "missing", "kernels", "files", "digest"),
)
OF_KERNEL = (
    *("backends", "doc", "frontend", "library", "launcher", "source_libraries", "libraries", "contains", "operators"),
    "written",
    *("debug", "opaque", "recorded", "outputs", "backward", "drivers", "meaning", "declared", "tables", "variants"),
)
OF_VARIANT = ("slug", "config", "archs", "tabled", "exported", "arguments", "symbols", *OF_SIZES, "units")
OF_UNIT = ("target", "archs", "source_arch", "schedule", "source_digest", "signature", "resources", "images", "tools")
OF_PROVIDER = (
    *("schema", "package", "arch", "version", "driver", "kernelwright", "licenses", "source", "files", "digest"),
)
"""What there is in the manifest of a package: of it, and of its kernels and their parts; and in that of device code."""


class Content(NamedTuple):
    """The files of a package in a wheel, and what its manifest says.

    Arguments:
        document: the manifest.
        folder: of the package in the wheel, with a slash at its end.
        files: all of the wheel: path -> content.
    """

    document: Record
    folder: str
    files: Mapping[str, bytes]

    @property
    def inside(self) -> set[str]:
        """The paths of the package's files, relative to it."""
        return {name.removeprefix(self.folder) for name in self.files if name.startswith(self.folder)}

    @property
    def family(self) -> str:
        """The family of CPUs that it is for, as its manifest says; those without a word of it are for x86-64."""
        return self.document.text("machine") if self.document.has("machine") else "x86_64"

    def file(self, path: str) -> bytes:
        """The content of a file of the package; empty: there is none."""
        return self.files.get(self.folder + path, b"")

    @property
    def split(self) -> bool:
        """Whether its device code is in other wheels."""
        return self.in_files and bool(self.document.record("device_code").mapping("packages"))

    @property
    def in_files(self) -> bool:
        """Whether libraries do not hold its device code."""
        return self.document.has("device_code")


def content_of(manifest: str, files: Mapping[str, bytes]) -> Content:
    """The content of a wheel with that manifest.

    Raises:
        ValueError: the loader of the package would refuse the manifest, or no build writes it so.
    """
    text = files[manifest]
    try:
        manifest_in(text, PurePosixPath(manifest))
    except DamageError as error:
        raise ValueError(error.problem.removeprefix(f"{manifest}: ")) from error
    document = Record(decoded(text), "")
    if sealed_document(document.raw).encode() != text:
        raise ValueError("is written in another way than a build writes it, such as with a key twice")
    return Content(document, manifest.removesuffix(MANIFEST), files)


def file_problems(content: Content) -> Iterator[str]:
    """The files are those that the manifest lists."""
    document, folder = content.document, content.folder
    entries = document.record("files")
    for path in sorted(entries.raw):
        data, entry = content.files.get(folder + path), entries.record(path)
        digest, size = entry.text("sha256"), entry.count("size")
        if data is None:
            yield f"{folder}{path} is in the manifest, and missing"
        elif hashlib.sha256(data).hexdigest() != digest or len(data) != size:
            yield f"{folder}{path} is not the file that the manifest lists"
    for path in sorted(content.inside - entries.raw.keys() - {MANIFEST}):
        yield f"{folder}{path} is not in the manifest"


def package_problems(content: Content) -> Iterator[str]:
    """What is wrong with a package, or with device code of one arch, whose files are those that its manifest lists.

    Raises:
        ValueError: something in the manifest has another form than a build writes.
    """
    document = content.document
    is_provider = document.has("arch")
    document.require_names(*(OF_PROVIDER if is_provider else OF_PACKAGE))
    source = document.record("source")
    source.require_names("commit", "dirty")
    if not COMMIT.fullmatch(source.text("commit")) or not isinstance(source.flag("dirty"), bool):
        yield f"its manifest names the commit {shown(source.text('commit'))}, which is none of git's"
    if not RELEASE.fullmatch(document.text("kernelwright")):
        yield f"its manifest names the version {shown(document.text('kernelwright'))}, which is none of Kernelwright's"
    yield from _name_problems(content)
    yield from _external_problems(content)
    if is_provider:
        yield from list(_provider_problems(content)) or licence_problems(document, content.files)
        return
    _ = document.mapping("tools")
    if content.family not in FAMILIES:
        yield f"its manifest names CPUs of the family {shown(content.family)}, which there is not"
        return
    problems = list(_kernel_problems(content))
    problems += [*_backend_problems(content), *_surplus(content, _expected(content))]
    problems += [*_image_problems(content)] if content.in_files and not content.split else []
    problems += [*split_problems(content.document, content.files)] if content.split else []
    yield from problems or [*_text_problems(content), *licence_problems(document, content.files)]


def _external_problems(content: Content) -> Iterator[str]:
    """METADATA says the same of drivers as the manifest."""
    said, needed = fields(content.files, "METADATA", "Requires-External"), external(least_drivers(content.document))
    if said != needed:
        yield f"METADATA requires {shown(', '.join(said))}, and its manifest lists {', '.join(needed) or 'no driver'}"


def _name_problems(content: Content) -> Iterator[str]:
    """The folder is that of the package which the manifest is about, and no other package is replaced."""
    document, folder = content.document, content.folder
    package = document.text("package")
    own = provider_package(package, document.text("arch")) if document.has("arch") else package
    if folder != f"{own.replace('.', '/')}/":
        yield f"{folder}{MANIFEST} is about the package {own}, which is in another folder"
    if folder.partition("/")[0] in TAKEN or not is_importable(folder.rstrip("/").replace("/", ".")):
        yield f"{folder} would take the place of something else that programs import, or cannot be imported"


# ---- kernels


def _kernel_problems(content: Content) -> Iterator[str]:
    """Each kernel is what the manifest says, and has a library, or Python code, of its own that says the same."""
    kernels, libraries = content.document.record("kernels"), set[str]()
    if not kernels.raw:
        yield "its manifest lists no kernel"
    for name, kernel in content.document.members("kernels"):
        if not is_name(name):
            yield f"its manifest lists the kernel {shown(name)}, which is no name of one"
        elif not is_entry(kernel.raw):
            yield f"its manifest describes kernel {name} in a form that loaders refuse"
        else:
            yield from _form_problems(name, kernel, content)
            yield from _library_problems(name, kernel, content)
            yield from _code_problems(name, kernel, content)
        library = kernel.text("library") if kernel.has("library") else ""
        if library and library in libraries:
            yield f"kernel {name} has the library of another kernel"
        libraries |= {library}


def _form_problems(name: str, kernel: Record, content: Content) -> Iterator[str]:
    """What the manifest says of a kernel is possible."""
    kernel.require_names(*OF_KERNEL)
    variants = kernel.records("variants")
    arguments = {argument.name for variant in variants for argument in _arguments(variant)}
    if unknown := {*kernel.texts("outputs")} - arguments:
        yield f"kernel {name} has no argument {shown(min(unknown))}, which the manifest lists as an output"
    if unknown := {*kernel.texts("backends")} - content.document.record("backends").raw.keys():
        yield f"kernel {name} has the backend {shown(min(unknown))}, which the manifest does not describe"
    if kernel.has("debug") and kernel.text("debug") not in LEVELS[1:]:
        yield f"kernel {name} has debug {shown(kernel.text('debug'))}, which is none of {', '.join(LEVELS[1:])}"
    if len({variant.text("slug") for variant in variants}) != len(variants):
        yield f"kernel {name} has two variants of one name"
    for variant in variants:
        subject = f"kernel {name}, variant {variant.text('slug')}"
        in_files = content.in_files and not _has_own_libraries(kernel)
        yield from (f"{subject} {problem}" for problem in _variant_problems(variant, content.family, in_files))


def _variant_problems(variant: Record, family: str, in_files: bool) -> Iterator[str]:
    """The archs and dtypes of a variant are ones that there are, and device code is where it has to be."""
    variant.require_names(*OF_VARIANT)
    units = variant.records("units")
    if [arch for unit in units for arch in unit.texts("archs")] != variant.texts("archs"):
        yield "lists other archs than its units"
    for unit in units:
        unit.require_names(*OF_UNIT)
        target, archs, _ = unit.text("target"), unit.texts("archs"), unit.text("schedule")
        if not all(DIGEST.fullmatch(unit.text(name)) for name in ("source_digest", "signature")):
            yield "has a digest that is none"
        if any(arch not in archs for arch, _ in unit.members("resources")):
            yield "uses resources of an arch that it has no code for"
        images = unit.record("images").raw if unit.has("images") else {}
        if target == "cuda" and list(images) != (archs if in_files else []):
            yield "has device code for other archs than it lists"
        known = (FAMILY_OF.get(arch) == family if target == "llvm" else CudaArch.of(arch) for arch in archs)
        if target not in TARGETS or not archs or not all(known):
            yield f"has code of the target {shown(target)} for {shown(', '.join(archs))}, which there is not"
    for dtype in sorted({argument.dtype for argument in _arguments(variant)}):
        if not _is_dtype(dtype):
            yield f"has the dtype {shown(dtype)}, which there is not"


def _arguments(variant: Record) -> tuple[Argument, ...]:
    return variant.typed(tuple[Argument, ...], "arguments")


def _is_dtype(text: str) -> bool:
    try:
        return bool(Dtype.parse(text, Where()))
    except KernelwrightError:
        return False


def _library_problems(name: str, kernel: Record, content: Content) -> Iterator[str]:
    """A kernel's library, and what its backends have made, are its own, and are described by the manifest."""
    said = description_in(name, kernel).encode()
    paths = [content.folder + product_of(backend, f"_{name}.py") for backend in kernel.texts("backends")]
    telling = {path: content.files[path] for path in paths if path in content.files}
    if kernel.has("library"):
        path = kernel.text("library")
        library = telling[content.folder + path] = content.file(path)
        if path != library_of(name):
            yield f"kernel {name} has the library {shown(path)}, and a build calls it {library_of(name)}"
        launcher = kernel.text("launcher") if kernel.has("launcher") else ""
        yield from _needed_problems(name, kernel, _own_code(kernel, content), requirements(content.files))
        if kernel.has("operators"):
            needs = fields(content.files, "METADATA", "Requires-Dist")
            yield from operator_problems(name, kernel, library, needs)
            return
        if not LAUNCHER.fullmatch(launcher) or PurePosixPath(launcher).name.encode() not in library:
            yield f"kernel {name} was not linked with {shown(launcher)}, which the manifest lists"
        yield from _source_library_problems(name, kernel, library, content)
    elif not telling:
        yield f"kernel {name} has neither a library nor code in Python"
    for path, data in telling.items():
        if said not in data:
            yield f"{path} is not what the manifest says of kernel {name}, its variants, arguments and sizes"


def _source_library_problems(name: str, kernel: Record, library: bytes, content: Content) -> Iterator[str]:
    """The libraries of a kernel's sources are those that its own library needs, and are called so."""
    needed = {*NEEDED_BY_PATH.findall(library)}
    for own in _own_libraries(kernel):
        file = PurePosixPath(own).name.encode()
        if not SOURCE_LIBRARY.fullmatch(own) or file not in needed:
            yield f"kernel {name} was not linked with {shown(own)}, which the manifest lists"
        elif {*NEEDED_BY_PATH.findall(content.file(own))} != {file}:
            yield f"{content.folder}{own} is not the library that kernel {name} was linked with"
        needed.discard(file)
    if needed:
        yield f"kernel {name} needs the library of its sources, which the manifest does not list"


def _own_libraries(kernel: Record) -> tuple[str, ...]:
    """The libraries of a kernel's sources."""
    return tuple(kernel.texts("source_libraries")) if kernel.has("source_libraries") else ()


def _needed_problems(name: str, kernel: Record, code: Sequence[bytes], installed: set[str]) -> Iterator[str]:
    """A library that a kernel needs of another package is one that it is linked with, and is installed with it."""
    linked = kernel.typed(tuple[tuple[str, str, str], ...], "libraries") if kernel.has("libraries") else ()
    for needed, folder, requirement in linked:
        if "/" in needed or not is_relative(folder) or ".." in folder.split("/"):
            yield f"kernel {name} needs {shown(needed)} of {shown(folder)}, which is no folder of a package"
        if not all(needed.encode() in library for library in code):
            yield f"kernel {name} was not linked with {shown(needed)}, which the manifest lists"
        if _distribution(requirement) not in installed:
            remedy = f'add "{requirement}" to project.dependencies'
            yield f"it does not depend on {shown(requirement)}, which has {needed} for kernel {name}: {remedy}"


def _has_own_libraries(kernel: Record) -> bool:
    """Whether the device code of a kernel is in libraries of its sources, whatever is done with that of others."""
    return kernel.has("source_libraries") or kernel.has("operators")


def _own_code(kernel: Record, content: Content) -> list[bytes]:
    """The libraries that a kernel's device code is in, and that are linked with libraries of other packages."""
    return [content.file(path) for path in _own_libraries(kernel) or (kernel.text("library"),)]


def _code_problems(name: str, kernel: Record, content: Content) -> Iterator[str]:
    """The code in the library of a kernel is for the archs that the manifest says."""
    code = _own_code(kernel, content) if kernel.has("library") else [b""]
    variants = kernel.records("variants")
    claimed = {arch for variant in variants for arch in variant.texts("archs")}
    if kernel.has("operators") or any(variant.has("exported") for variant in variants):
        problems = list(dict.fromkeys(problem for each in code for problem in own_code_problems(name, claimed, each)))
    else:
        if content.in_files:
            claimed = {arch for arch in claimed if arch in CPU_LEVELS}
        problems = [*arch_problems(name, claimed, code[0], content.document.has("compress"))]
    yield from problems
    if not problems and not content.in_files:
        yield from driver_problems(f"kernel {name}", of_kernel(kernel), code)


# ---- backends and files


def _backend_problems(content: Content) -> Iterator[str]:
    """Each backend is described as loaders need it, and what the default one needs is installed with the package."""
    described_by, installed = content.document.record("backends"), requirements(content.files)
    if not described_by.raw:
        yield "its manifest describes no backend"
    for name in described_by.raw:
        if name not in backends.all_names():
            yield f"it has the backend {shown(name)}, which neither Kernelwright has nor a plug-in that is installed"
            continue
        if not is_backend(described_by.raw[name]):
            yield f"its manifest describes the backend {shown(name)} in a form that loaders refuse"
            continue
        for module in described_by.record(name).texts("modules"):
            if not RUNTIME_MODULE.fullmatch(f"_runtime/{module}") or not content.file(f"_runtime/{module}"):
                yield f"its manifest has {name} loaded by {shown(module)}, which is no module of the package"
        first = name == next(iter(described_by.raw))
        for _, need in described_by.raw[name]["needs"] if first else ():
            if _distribution(need) not in installed:
                yield f"it does not depend on {shown(need)}, which the backend {name} needs"


def _distribution(requirement: str) -> str:
    try:
        return canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement:
        return ""


def _expected(content: Content) -> set[str]:
    """The files that a build has in a package, but for modules of ``_runtime``."""
    document = content.document
    chosen = [backends.get(name) for name in document.record("backends").raw if name in backends.all_names()]
    expected = {
        path
        for path in outputs(content.folder.rstrip("/"), chosen, content.in_files)
        if not RUNTIME_MODULE.fullmatch(path)
    }
    for name, kernel in document.members("kernels"):
        expected |= {kernel.text(key) for key in ("library", "launcher") if kernel.has(key)}
        expected |= {*_own_libraries(kernel)}
        called = kernel.texts("backends")
        expected |= {product_of(b.name, file) for b in chosen if b.name in called for file in b.products(name)}
    if content.in_files and not content.split:
        images = {image.path for image in listed_images(document)}
        # A wheel variant has those that its label stands for, which is compared with that.
        expected |= images & content.inside if label_of(document) else images
    return expected | {"_runtime/__init__.py", "_runtime/loader.py"}


def _surplus(content: Content, expected: set[str]) -> Iterator[str]:
    """A package has all files that a build writes, and no others; libraries are such."""
    for path in sorted(content.inside - expected):
        if not RUNTIME_MODULE.fullmatch(path):
            yield f"{content.folder}{path} is no file that a build has in a package"
    for path in sorted(expected - content.inside):
        yield f"{content.folder}{path} is missing, which each build writes"
    for path in sorted(path for path in content.inside & expected if path.endswith(".so")):
        if problem := library_problem(content.file(path), content.family):
            yield f"{content.folder}{path} {problem}"
        entry = f"PyInit_{path.rpartition('/')[2].partition('.')[0]}"
        if path.endswith(".abi3.so") and entry.encode() not in content.file(path):
            yield f"{content.folder}{path} is the module of another kernel"


def _text_problems(content: Content) -> Iterator[str]:
    """The texts of a package are those that a build writes; told only if this Kernelwright has the same version."""
    document = content.document
    if document.text("kernelwright") != VERSION:
        return
    described_by = document.record("backends").raw
    if described_by != described_backends(described_by):
        yield "its manifest describes the backends in another way than a build"
    for path, text in generated(_rebuilt(document)).items():
        if content.file(path) != text.encode():
            message = "was altered, or written by another state of Kernelwright"
            yield f"{content.folder}{path} is not what Kernelwright {VERSION} writes: it {message}"


def _rebuilt(document: Record) -> BuiltPackage:
    """What a package was made of, as far as its texts depend on it."""
    packaged = []
    for name, kernel in document.members("kernels"):
        entry = pretty_json({key: value for key, value in kernel.raw.items() if key != "backends"})
        packaged.append(PackagedKernel(name, entry, tuple(kernel.texts("backends")), {}))
    return BuiltPackage(
        name=document.text("package"),
        version=VERSION,
        tools={},
        backends=tuple(document.record("backends").raw),
        kernels=tuple(packaged),
        device_code=document.record("device_code").raw if document.has("device_code") else {},
        project=document.text("version") if document.has("version") else "",
    )


# ---- device code in files


def _provider_problems(content: Content) -> Iterator[str]:
    """Every file of device code is for the arch that the wheel is for, and the wheel can be found and is pinned."""
    document, folder = content.document, content.folder
    package, arch, version = document.text("package"), document.text("arch"), document.text("version")
    codes = {path for path in content.inside if CODE_FILE.fullmatch(path)}
    yield from _surplus(content, {*codes, "__init__.py", MANIFEST})
    if not codes:
        yield f"it has no device code for {arch}"
    wrong = {path: problem for path in sorted(codes) if (problem := image_problem(path, arch, content.file(path)))}
    yield from (f"{folder}{path} {problem}, and the wheel is for {arch}" for path, problem in wrong.items())
    if codes and not wrong:
        yield from driver_problems(f"the wheel for {arch}", least_drivers(document), map(content.file, sorted(codes)))
    init = PROVIDER_INIT.format(package=package, arch=arch).encode()
    if document.text("kernelwright") == VERSION and content.file("__init__.py") != init:
        yield f"{folder}__init__.py is not what Kernelwright {VERSION} writes"
    own = folder.rstrip("/").replace("/", ".")
    points = described(content.files, "entry_points.txt").splitlines()
    if f"[{GROUP}]" not in points or f"{own} = {own}" not in points:
        yield f"it has no entry point {own} in the group {GROUP}, so its device code would not be found"
    needs = fields(content.files, "METADATA", "Requires-Dist")
    if not any(re.fullmatch(rf"\S+=={re.escape(version)}", need) for need in needs):
        yield f"it does not depend on version {version} of {package}, to which it belongs"


def _image_problems(content: Content) -> Iterator[str]:
    """Every file of device code is there, and for the arch that the manifest says."""
    place, files = content.document.record("device_code").text("folder"), content.document.record("files")
    own = [kernel for _, kernel in content.document.members("kernels") if _has_own_libraries(kernel)]
    codes = [code for kernel in own for code in _own_code(kernel, content)]
    for image in listed_images(content.document):
        path = f"{place}/{image.file}"
        expected = {"sha256": image.sha256, "size": image.size}
        if label_of(content.document) and path not in files.raw:
            continue
        if place != IMAGES or files.raw.get(path) != expected:
            yield f"{content.folder}{path} is not the device code for {image.arch} that the manifest lists"
        elif problem := image_problem(path, image.arch, content.file(path)):
            yield f"{content.folder}{path} {problem}, and the manifest says {image.arch}"
        else:
            codes.append(content.file(path))
    yield from driver_problems("the package", least_drivers(content.document), codes)
