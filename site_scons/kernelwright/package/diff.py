"""What differs between two wheels of a package, for people and for CI: kernels, operators, registers, spills and sizes.

All of it is in the manifests. A wheel is read as a stranger's file: its digests are compared, and nothing of it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import KernelwrightError, Where, printable
from ..core.files import canonical_json
from ..core.records import Record
from ..runtime.loader import read_manifest
from .assemble import kernel_of
from .images import images_of, label_of
from .verify import manifest_of

WHERE = Where(stage="diff")

USUAL = "x86_64"
"""The family of CPUs that packages are for whose manifest names none."""


@dataclass(frozen=True)
class Usage:
    """What a device function uses: registers of a thread, and bytes of spill stores and loads together."""

    registers: int
    spills: int


@dataclass(frozen=True)
class KernelFacts:
    """What a manifest says of a kernel.

    Arguments:
        content: equal for equal kernels: all that the manifest says of it, but for its docstring.
        size: bytes of its library, its device code and what backends have compiled for it.
        archs: slug of a variant -> what it has code for.
        functions: slug and arch -> device function -> what it uses.
        schemas: operator that it registers with PyTorch -> its schema.
    """

    content: str
    size: int
    archs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    functions: Mapping[tuple[str, str], Mapping[str, Usage]] = field(default_factory=dict)
    schemas: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PackageFacts:
    """What a manifest says of a package.

    Arguments:
        name: its import name, with the arch if it has the device code of one, with the family of CPUs, and with the
            label of a wheel variant.
        partial: whether it lacks something because its build had errors.
        kernels: by name.
    """

    name: str
    partial: bool
    kernels: Mapping[str, KernelFacts]


@dataclass(frozen=True)
class Limits:
    """How much more a new package may use; None: there is no limit.

    Arguments:
        registers: of a thread, in any device function.
        spills: bytes, in any device function.
        size: of the bytes of any kernel, in percent.
    """

    registers: int | None = None
    spills: int | None = None
    size: float | None = None


@dataclass
class Difference:
    """The difference between two packages.

    Arguments:
        rows: what changed, the kernel or the part of it that did, and how.
        exceeded: the limits that are exceeded, a line for each.
        gone: what calls may have used and is there no more, a line for each kernel, each variant and each operator.
        added, removed, changed, same: how many kernels are.
    """

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    exceeded: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    added: int = 0
    removed: int = 0
    changed: int = 0
    same: int = 0

    @property
    def lines(self) -> Iterator[str]:
        """The rows, aligned, and a line with the numbers of kernels."""
        rows = [tuple(map(printable, row)) for row in self.rows]
        width = max((len(row[1]) for row in rows), default=0)
        for word, subject, text in rows:
            yield f"{word:8} {subject:{width}}  {text}".rstrip()
        numbers = f"{self.added} added, {self.removed} removed, {self.changed} changed, {self.same} as before"
        yield f"kernels: {numbers}"


def read_package(place: Path) -> PackageFacts:
    """What the manifest of a wheel, or of the folder of a built package, says.

    Raises:
        KernelwrightError: it is neither, or it is damaged.
    """
    try:
        document = Record(read_manifest(place / "manifest.json"), "") if place.is_dir() else manifest_of(place)
        return _package(document)
    except ImportError as error:
        raise KernelwrightError(str(error), WHERE, "name a wheel, or the folder of a built package") from error
    except ValueError as error:
        where = Where(stage="diff", location=str(place))
        raise KernelwrightError(f"its manifest is damaged: {error}", where, "get it again") from error


def compare(old: PackageFacts, new: PackageFacts, limits: Limits) -> Difference:
    """The difference between two packages.

    Raises:
        KernelwrightError: they are of different packages, or for different archs or families of CPUs.
    """
    if old.name != new.name:
        message = f"the one is of {printable(old.name)}, and the other of {printable(new.name)}"
        raise KernelwrightError(message, WHERE, "compare wheels of one package, for the same machines")
    difference = Difference()
    for name in sorted({*old.kernels, *new.kernels}):
        before, after = old.kernels.get(name), new.kernels.get(name)
        if before is None or after is None:
            _add_one(difference, name, before, after)
        elif before.content == after.content:
            difference.same += 1
        else:
            difference.changed += 1
            difference.rows += _changes(name, before, after)
            difference.gone += map(printable, _gone(name, before, after))
            difference.exceeded += map(printable, _exceeded(name, before, after, limits))
    return difference


def _add_one(difference: Difference, name: str, before: KernelFacts | None, after: KernelFacts | None) -> None:
    """Note a kernel that only one of the packages has."""
    difference.added += before is None
    difference.removed += after is None
    kernel, word = (after, "added") if after else (before, "removed")
    difference.rows.append((word, name, f"{kernel.size:,} bytes" if kernel else ""))
    if after is None:
        difference.gone.append(f"{printable(name)} is gone")


def _gone(name: str, before: KernelFacts, after: KernelFacts) -> Iterator[str]:
    """What the new package lacks of the variants and archs that a kernel had."""
    for slug, archs in sorted(before.archs.items()):
        lost = [arch for arch in archs if arch not in after.archs.get(slug, ())]
        if lost:
            whole = slug not in after.archs
            yield f"{name}/{slug} is gone" if whole else f"{name}/{slug} has no code for {', '.join(lost)} any more"
    yield from (
        f"{name} has no operator {operator} any more" for operator in sorted(before.schemas.keys() - after.schemas)
    )


def _changes(name: str, before: KernelFacts, after: KernelFacts) -> Iterator[tuple[str, str, str]]:
    """The rows about a kernel that both packages have."""
    same = f"{after.size:,} bytes, as before"
    yield "changed", name, same if before.size == after.size else f"{_step(before.size, after.size)} bytes"
    for slug in sorted({*before.archs, *after.archs}):
        old, new = before.archs.get(slug, ()), after.archs.get(slug, ())
        for word, archs in (("removed", [a for a in old if a not in new]), ("added", [a for a in new if a not in old])):
            if archs:
                yield word, f"{name}/{slug}", ", ".join(archs)
    yield from _operators(name, before, after)
    yield from _one_sided(name, before, after)
    for subject, one, other in _functions(name, before, after):
        steps = []
        if one.registers != other.registers:
            steps.append(f"{_step(one.registers, other.registers)} registers")
        if one.spills != other.spills:
            steps.append(f"{_step(one.spills, other.spills)} bytes of spills")
        if steps:
            yield "changed", subject, ", ".join(steps)


def _operators(name: str, before: KernelFacts, after: KernelFacts) -> Iterator[tuple[str, str, str]]:
    """The rows about operators of PyTorch that only one of the packages has, or that have another schema."""
    for operator in sorted({*before.schemas, *after.schemas}):
        old, new = before.schemas.get(operator), after.schemas.get(operator)
        if old is None or new is None:
            yield "added" if old is None else "removed", f"{name} {operator}", new or old or ""
        elif old != new:
            yield "changed", f"{name} {operator}", f"{old}, now {new}"


def _one_sided(name: str, before: KernelFacts, after: KernelFacts) -> Iterator[tuple[str, str, str]]:
    """The rows about device functions that only one of the packages has, of archs that both have."""
    for slug, arch in sorted(before.functions.keys() & after.functions.keys()):
        old, new = before.functions[slug, arch], after.functions[slug, arch]
        if len(old) == len(new) == 1:  # a single function may have another name
            continue
        for word, functions, others in (("removed", old, new), ("added", new, old)):
            for function in sorted(functions.keys() - others.keys()):
                used = functions[function]
                text = f"{used.registers} registers, {used.spills:,} bytes of spills"
                yield word, f"{name}/{slug} {arch} {function}", text


def _functions(name: str, before: KernelFacts, after: KernelFacts) -> Iterator[tuple[str, Usage, Usage]]:
    """The device functions that both packages have, with what they use."""
    for slug, arch in sorted(before.functions.keys() & after.functions.keys()):
        old, new = before.functions[slug, arch], after.functions[slug, arch]
        if len(old) == len(new) == 1:  # a single function may have another name
            old = {next(iter(new)): next(iter(old.values()))}
        for function in sorted(old.keys() & new.keys()):
            yield f"{name}/{slug} {arch} {function}", old[function], new[function]


def _exceeded(name: str, before: KernelFacts, after: KernelFacts, limits: Limits) -> Iterator[str]:
    """What of a kernel has grown by more than it may."""
    for subject, old, new in _functions(name, before, after):
        for what, limit in (("registers", limits.registers), ("spills", limits.spills)):
            grown = getattr(new, what) - getattr(old, what)
            if limit is not None and grown > limit:
                yield f"{subject}: {what} grew by {grown}, and may grow by {limit}"
    if limits.size is not None and (after.size - before.size) * 100 > limits.size * before.size:
        yield f"{name}: its size grew from {_step(before.size, after.size)} bytes, and may grow by {limits.size:g}%"


def _step(before: int, after: int) -> str:
    """A number before and after, and by how much it changed."""
    return f"{before:,} -> {after:,} ({after - before:+,})"


def _package(document: Record) -> PackageFacts:
    name = document.text("package")
    if document.has("arch"):
        return PackageFacts(f"{name} for {document.text('arch')}", False, _device_code(document.record("files")))
    files, kernels = document.record("files"), document.members("kernels")
    if document.has("machine") and document.text("machine") != USUAL:
        name = f"{name} for {document.text('machine')}"
    label = label_of(document)
    facts = {name: _kernel(name, kernel, files, is_variant=bool(label)) for name, kernel in kernels}
    return PackageFacts(f"{name}, the wheel variant {label}" if label else name, document.has("missing"), facts)


def _device_code(files: Record) -> dict[str, KernelFacts]:
    """The kernels of a wheel with the device code of one arch; each has a folder."""
    facts: dict[str, KernelFacts] = {}
    for path in sorted(files.raw):
        name, slash, _ = path.partition("/")
        if slash:
            file, before = files.record(path), facts.get(name, KernelFacts("", 0))
            content = f"{before.content}{path} {file.text('sha256')}\n"
            facts[name] = KernelFacts(content, before.size + file.count("size"))
    return facts


def _kernel(name: str, kernel: Record, files: Record, is_variant: bool) -> KernelFacts:
    """What a manifest says of a kernel, in a wheel variant only of the device code that is there."""
    own = [kernel.text("library")] if kernel.has("library") else []
    own += [path for path in sorted(files.raw) if kernel_of(path) == name]
    size = sum(files.record(path).count("size") for path in own)
    digests = [[path, files.record(path).text("sha256")] for path in own]
    archs: dict[str, tuple[str, ...]] = {}
    functions: dict[tuple[str, str], dict[str, Usage]] = {}
    for variant in kernel.records("variants"):
        slug = variant.text("slug")
        listed = images_of(variant) if is_variant else ()
        absent = {image.arch for image in listed if image.path not in files.raw}
        archs[slug] = tuple(arch for arch in variant.texts("archs") if arch not in absent)
        for unit in variant.records("units"):
            images = unit.members("images") if unit.has("images") else ()
            size += sum(image.count("size") for arch, image in images if arch not in absent)
            used = unit.record("resources")
            for arch in used.raw.keys() - absent:
                functions.setdefault((slug, arch), {}).update({n: _usage(u) for n, u in used.members(arch)})
    said = {key: value for key, value in kernel.raw.items() if key != "doc"}
    registered = kernel.record("operators").members("registered") if kernel.has("operators") else ()
    schemas = {operator: told.text("schema") for operator, told in registered}
    return KernelFacts(canonical_json([said, digests]), size, archs, functions, schemas)


def _usage(used: Record) -> Usage:
    return Usage(used.count("registers"), used.count("spill_store_bytes") + used.count("spill_load_bytes"))
