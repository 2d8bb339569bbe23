"""Wheel variants: a wheel for each kind of GPU, of which the installer takes the one for its machine.

The format is that of PEP 825, with the providers of the draft of PEP 850, as uv 0.13 reads it: a label at the end of a
wheel's name, the properties of that label in ``variant.json`` of its ``.dist-info``, and those of all labels in a file
beside the wheels of a version. A provider, which is NVIDIA's here, tells the installer which properties a machine has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..core.arch import SHARED_MEMORY, CudaArch
from ..core.driver import LEAST
from ..core.errors import KernelwrightError, SettingsError, Where
from ..core.files import pretty_json
from ..core.records import Record, decoded
from ..runtime.arch import suitability, suitable, version_text

NULL = "null"
"""The label of the wheel for machines that none of the others is for; the standard gives it no properties."""

LABELLED = re.compile(r"(?P<plain>[^-]+-[^-]+(?:-\d[^-]*)?-(?!\d)[^-]+-[^-]+-[^-]+)-(?P<label>[0-9a-z_.]+)\.whl")
"""The name of a wheel with a label; a build number begins with a digit, and the tag behind it with a letter."""

NAMESPACE = "nvidia"
ARCH, DRIVER = "sm_arch", "cuda_version_lower_bound"
"""Features of the provider: which code the GPU runs, and the CUDA version that the driver is for, or an older one."""

HEAD: Mapping[str, Any] = {
    "$schema": "https://variants-schema.wheelnext.dev/peps/850/v0.2.0.json",
    "default-priorities": {"namespace": [NAMESPACE]},
    "providers": {
        NAMESPACE: {
            "requires": ["nvidia-variant-provider>=0.0.1,<1.0.0"],
            "plugin-api": "nvidia_variant_provider.plugin:NvidiaVariantPlugin",
        }
    },
}
"""What all files of variants begin with. uv has this provider built in, and knows it by these two texts."""

KNOWN = frozenset(arch.number for arch in map(CudaArch.of, SHARED_MEMORY) if arch)
"""The capabilities of the GPUs that there are."""

INFO_FILE = "variant.json"
WHERE = Where(stage="wheel")


class Group(NamedTuple):
    """The GPUs that one value of the provider's feature ``sm_arch`` stands for.

    The provider says ``86_real`` of a GPU of capability 8.6, and of those of a higher minor version, which run the same
    machine code. It has no value for code with suffix ``a``, which runs on one capability, so a wheel for a group has
    further code if not all of the group run that.

    Arguments:
        first: the lowest capability, 10 * major + minor.
        end: the first capability for which there is a better group; or that of the next major version.
    """

    first: int
    end: int

    @property
    def value(self) -> str:
        """The value of the feature."""
        return f"{self.first}_real"

    @property
    def capabilities(self) -> range:
        """The capabilities of all GPUs that an installer may give the wheel to."""
        return range(self.first, self.first // 10 * 10 + 10)

    def has(self, arch: str) -> bool:
        """Whether an arch is one of those that the group is there for, and not PTX that it has as well."""
        cuda = CudaArch.of(arch)
        return cuda is not None and cuda.number == self.first and _is_of_group(cuda)

    def label(self, toolkit: str = "") -> str:
        """The label of its wheel: ``sm_90``, or ``cu128_sm_90`` if it is of one of several toolkits."""
        return f"{toolkit}_sm_{self.first}".lstrip("_")

    def code(self, archs: Sequence[str]) -> list[str]:
        """The archs among some that its wheel has: the best one for each GPU, and what runs on all of the group."""
        best = {capability: suitable(archs, capability)[:1] for capability in self.capabilities}
        chosen = dict.fromkeys(arch for capability in range(self.first, self.end) for arch in best[capability])
        for capability in range(self.end, self.capabilities.stop):
            if not any(suitability(arch, capability) for arch in chosen):
                chosen |= dict.fromkeys(best[capability])
        return [arch for arch in archs if arch in chosen]

    def driver(self, drivers: Mapping[str, int]) -> int:
        """The CUDA version that a driver must at least be for, so that each GPU of the group runs some of the code.

        A GPU that is not known yet needs a driver that is newer than all code of today.

        Arguments:
            drivers: arch of the code -> the CUDA version that it needs.
        """
        known = [capability for capability in self.capabilities if capability in KNOWN] or self.capabilities
        needed = [[drivers[arch] for arch in drivers if suitability(arch, one)] for one in known]
        return max([LEAST, *(min(each) for each in needed if each)])


def groups_of(archs: Iterable[str]) -> list[Group]:
    """The groups that there is a wheel for: one for each capability that there is machine code for.

    >>> [group.value for group in groups_of(["sm_80", "sm_90a", "compute_80"])]
    ['80_real', '90_real']
    """
    numbers = sorted({arch.number for arch in map(CudaArch.of, archs) if arch and _is_of_group(arch)})
    ends = {number: number // 10 * 10 + 10 for number in numbers}
    return [Group(number, min(n for n in (*numbers, ends[number]) if n > number)) for number in numbers]


def portable(archs: Iterable[str]) -> list[str]:
    """The archs among some whose code runs on all later GPUs, too: PTX. The wheel for other machines has it."""
    return [arch for arch in archs if (cuda := CudaArch.of(arch)) and not _is_of_group(cuda)]


def _is_of_group(arch: CudaArch) -> bool:
    return not arch.is_ptx or bool(arch.suffix)


def require_groups(archs: Sequence[str], location: str) -> list[Group]:
    """The groups of some archs, if each GPU that a wheel would be offered to runs some of its code.

    Raises:
        SettingsError: there is a group with a GPU that none of the archs runs on, or there is no group.
    """
    where = Where(stage="settings", location=location)
    groups = groups_of(archs)
    if not groups:
        message = f"split = 'variant' makes a wheel for each kind of GPU, and archs has PTX only: {', '.join(archs)}"
        raise SettingsError(message, where, "add an arch such as sm_90, or write split = none")
    for group in groups:
        code = group.code(archs)
        missed = next((one for one in group.capabilities if not any(suitability(arch, one) for arch in code)), None)
        if missed is not None:
            only, major = " and ".join(code), group.first // 10
            message = (
                f"split = 'variant' would offer {only} to GPUs of arch {dotted(missed)}, too, which do not run it: "
                f"installers know GPUs as {group.value!r}, which is each of {dotted(group.first)} to {major}.x"
            )
            families = f", sm_{major}0f" if major >= 10 else ""
            remedy = f"add code to archs that all of these run, such as sm_{major}0{families} or compute_{major}0"
            raise SettingsError(message, where, remedy)
    return groups


def dotted(capability: int) -> str:
    """A compute capability as people write it: ``9.0`` for 90."""
    return f"{capability // 10}.{capability % 10}"


# ---- documents


def properties(group: Group, drivers: Mapping[str, int]) -> dict[str, Any]:
    """What an installer looks for before it takes the wheel for a group; ``drivers`` are those of its code."""
    return {NAMESPACE: {DRIVER: [version_text(group.driver(drivers))], ARCH: [group.value]}}


def variant_text(label: str, needs: Mapping[str, Any]) -> str:
    """The text of ``variant.json``: the properties of one label; the null variant has none."""
    return pretty_json({**HEAD, "variants": {label: needs}})


def begin_of(wheel: str) -> str:
    """The project and the version in the name of a wheel: ``acme_kernels-1.0``."""
    return "-".join(wheel.split("-")[:2])


def index_name(begin: str) -> str:
    """Name of the file with the properties of all labels, for wheels that begin with a project and a version."""
    return f"{begin}-variants.json"


def label_in(wheel: str) -> str:
    """The label in the name of a wheel; empty: it has none."""
    named = LABELLED.fullmatch(wheel)
    return named["label"] if named else ""


def without_label(wheel: str) -> str:
    """The name of a wheel without its label."""
    return LABELLED.sub(r"\g<plain>.whl", wheel)


def read_variant(text: bytes, label: str) -> dict[str, Any]:
    """The properties in a ``variant.json``.

    Raises:
        ValueError: it has another form than a build writes, or is about another label.
    """
    document = Record(decoded(text), "")
    document.require_names(*HEAD, "variants")
    if any(document.raw[key] != value for key, value in HEAD.items()):
        raise ValueError("it has another schema, or other providers, than a build writes")
    if list(document.record("variants").raw) != [label]:
        raise ValueError(f"it is about {', '.join(document.record('variants').raw) or 'no label'}, and not {label}")
    needs: dict[str, Any] = document.record("variants").record(label).raw
    return needs


def index_text(variants: Mapping[str, tuple[str, Mapping[str, Any]]]) -> str:
    """The text of the file beside the wheels.

    Arguments:
        variants: name of a wheel -> its label, and the properties.

    Raises:
        KernelwrightError: installers could not tell two wheels apart, or one label has two meanings.
    """
    needs_of: dict[str, Mapping[str, Any]] = {}
    first: dict[str, str] = {}
    for wheel, (label, needs) in sorted(variants.items()):
        same = next((other for other, found in needs_of.items() if (found == needs) != (other == label)), "")
        if same:
            fault = "ask for other machines" if same == label else "ask for the same machines"
            message = f"{first[same]} and {wheel} {fault}, so they cannot be offered together"
            remedy = "remove the one that is of an earlier build; or name only one of two toolkits with equal drivers"
            raise KernelwrightError(message, WHERE, remedy)
        needs_of[label] = needs
        first.setdefault(label, wheel)
    return pretty_json({**HEAD, "variants": dict(sorted(needs_of.items()))})
