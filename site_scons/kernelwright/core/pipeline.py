"""The table of all stages of a build, in order. A row has every fact about a stage except what it does.

The rows are read by the stages themselves, by the timeline and its report, by what shares out memory, and by the docs.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class StageKind:
    """One kind of stage.

    Arguments:
        label: its name in progress lines, in the timeline and in the docs.
        colours: of its bars in the report, on a light and on a dark page.
        sources: the files that it reads, for the docs.
        request: the class of its requests, in its module: what else decides its outputs.
        outputs: the files that it makes, for the docs.
        module: the module that makes it. What that imports is the code of the stage.
        also: modules, and folders of modules, that run for it without being imported: in other processes, or by name.
            What those import is code of the stage, too.
        memory: kind of tool that it runs -> KiB that the first run of that kind is taken to need.
        of_variant: it makes code of one variant, which a partial package can do without.
        of_kernel: it makes a part of a kernel, which a partial package can do without.
    """

    label: str
    colours: tuple[str, str]
    sources: str = ""
    request: str = ""
    outputs: str = ""
    module: str = ""
    also: tuple[str, ...] = ()
    memory: dict[str, int] = field(default_factory=dict)
    of_variant: bool = False
    of_kernel: bool = False

    @property
    def tolerated(self) -> bool:
        """Whether the stage may fail and there is a partial package all the same."""
        return self.of_variant or self.of_kernel


MIB = 1 << 10
"""KiB of a MiB."""

RUNNER = "processes.runner"
"""Runs the tools of stages, which get it from the run and do not import it."""

COMPILER_OF_DEVICE_CODE = {"nvcc": 512 * MIB, "nvrtc": 512 * MIB}
"""Small kernels need 100 MiB of it (nvcc 13.0, in cicc)."""

STAGES = (
    StageKind("PROBE", ("#647388", "#9aa6b5")),
    StageKind(
        "DISCOVER",
        ("#3b6fb6", "#adc2f5"),
        "none",
        "Failure",
        "nothing: with `-k`, it fails in place of a definition file that cannot be executed",
        module="stages.discover",
        also=("stages.discovery", "worker.server", "frontends"),
        of_kernel=True,
    ),
    StageKind(
        "LOWER",
        ("#228264", "#3ac18d"),
        "what the definition file depends on; the file itself is in the request",
        "Lowering",
        "`module.tir`, `signature.json`; `host.o`, or `host.c` and `device.cu` (with TileLang `flags.json`); or what "
        "[CuTe DSL](cutedsl.md#what-is-built) or [Triton](triton.md#what-is-built) makes",
        module="stages.lower",
        also=("worker.server", "frontends"),
        of_variant=True,
    ),
    StageKind(
        "PTX",
        ("#12696f", "#6dbfd1"),
        "`device.cu`, and `flags.json` if there is one",
        "NvccCompilation",
        "`<arch>.ptx`, `<arch>.json`, `compile_<arch>.sh`",
        module="stages.device",
        also=("toolchain.nvrtc_compile", RUNNER),
        memory=COMPILER_OF_DEVICE_CODE,
        of_variant=True,
    ),
    StageKind(
        "CUBIN",
        ("#747a10", "#babf41"),
        "the PTX of its virtual arch; `device.cu`, if the compiler is run as a whole; `flags.json` if there is one",
        "NvccCompilation",
        "`<arch>.cubin`, `<arch>.json`, `compile_<arch>.sh`",
        module="stages.device",
        also=("toolchain.nvrtc_compile", RUNNER),
        memory=COMPILER_OF_DEVICE_CODE,
        of_variant=True,
    ),
    StageKind(
        "TEXT",
        ("#6b7a2f", "#c3d17a"),
        "none",
        "Texts",
        "`_objects/<name>-<digest>/<name>`: a source that [the definition makes]"
        "(cuda-cpp.md#sources-that-the-definition-writes); `_objects/headers-<digest>/<name>`: its headers",
        module="stages.text",
        of_variant=True,
    ),
    StageKind(
        "OBJECT",
        ("#4a5d9e", "#9fb0ea"),
        "a source with host code of its own, what `TEXT` makes",
        "ObjectCompilation",
        "`_objects/<source>-<digest>.o`, `.json`, `compile_<source>-<digest>.sh`; for all kernels that list the source",
        module="stages.object",
        also=(RUNNER,),
        of_variant=True,
    ),
    StageKind(
        "SOURCES",
        ("#2f7a8a", "#8fd0dd"),
        "the objects of sources with host code of their own, the launcher, what `GLIBC` makes",
        "SourceLibrary",
        "`_lib/<source>-<digest>.so`; in `_objects` its `.json`, `.s` and `link_<source>-<digest>.sh`",
        module="stages.sources",
        also=("backends", RUNNER),
        memory={"link": 256 * MIB},
        of_variant=True,
    ),
    StageKind(
        "FATBIN",
        ("#0f7396", "#62c3e8"),
        "the cubin or PTX",
        "Packing",
        "`<arch>.fatbin`, `pack_<arch>.sh`",
        module="stages.fatbin",
        also=(RUNNER,),
        memory={"fatbinary": 64 * MIB},
        of_variant=True,
    ),
    StageKind(
        "WRAP",
        ("#87421d", "#e67f5a"),
        "every `signature.json`",
        "Wrapping",
        "`wrapper.c`, `images.s` of the library; of a backend: its files for the kernel, such as `_<kernel>.pyx`",
        module="stages.wrap",
        also=("backends",),
        of_kernel=True,
    ),
    StageKind(
        "CC",
        ("#c43b7e", "#eb60a6"),
        "`wrapper.c`, every `host.c`",
        "Wrapper",
        "`wrapper.o`, `compile_wrapper.sh`",
        module="stages.cc",
        also=("backends", RUNNER),
        memory={"cc": 256 * MIB},
        of_kernel=True,
    ),
    StageKind(
        "LAUNCHER",
        ("#5b6f8c", "#a9bddb"),
        "what `GLIBC` makes",
        "Launcher",
        "`libkernelwright-<digest>.so`, `launcher.map`, `compile_launcher.sh`",
        module="stages.launcher",
        also=(RUNNER,),
        memory={"launcher": 256 * MIB},
    ),
    StageKind(
        "GLIBC",
        ("#7544bf", "#af94e9"),
        "none",
        "Floor",
        "`libc.so`, `libm.so`, `libdl.so`, `libpthread.so`, `librt.so`",
        module="stages.glibc",
        also=(RUNNER,),
        memory={"link": 256 * MIB},
    ),
    StageKind(
        "EXT",
        ("#a03fa8", "#d98ae0"),
        "what the backend has written",
        "Extension",
        "`_<kernel>.abi3.so`, `compile.sh`",
        module="stages.ext",
        also=("backends", RUNNER),
        memory={"ext": 256 * MIB},
        of_kernel=True,
    ),
    StageKind(
        "ENTRY",
        ("#93506e", "#d7a0b8"),
        "every `signature.json`, `module.tir`, image and `sm_*.json`",
        "Entry",
        "`entry.json`, where no backend needs a library",
        module="stages.entry",
        also=("backends",),
        of_kernel=True,
    ),
    StageKind(
        "LINK",
        ("#766314", "#dcb35c"),
        "`wrapper.o`, `images.s`, the launcher, what `GLIBC` and `SOURCES` make, every `host.o`, image, "
        "`signature.json`, `module.tir` and `sm_*.json`",
        "Linking",
        "`<kernel>.so`, `compile.sh`, `entry.json`",
        module="stages.link",
        also=("backends", RUNNER),
        memory={"link": 256 * MIB},
        of_kernel=True,
    ),
    StageKind(
        "TORCH",
        ("#9c4a1f", "#e8a27c"),
        "the objects of sources [for PyTorch](cuda-cpp.md#operators-for-pytorch), `signature.json`, what `GLIBC` makes",
        "Registering",
        "`<kernel>.so`, `compile.sh`, `entry.json`",
        module="stages.torch_library",
        also=("backends", RUNNER),
        memory={"torch": 512 * MIB},
        of_kernel=True,
    ),
    StageKind(
        "PACKAGE",
        ("#8e6047", "#ccb2aa"),
        "none; it waits for the kernels",
        "Package",
        "the package",
        module="stages.package",
        also=("backends",),
    ),
    StageKind(
        "WHEEL",
        ("#2b5f5f", "#8fc9c4"),
        "`manifest.json`, `pyproject.toml` and the files that it names",
        "Wheels",
        "`package.whl`, `wheel.json`; if it is split, `<arch>.whl` or `<label>.whl`",
        module="stages.wheel",
        also=("backends",),
    ),
    StageKind(
        "COMMANDS",
        ("#6a6a6a", "#b8b8b8"),
        "none; it waits for the libraries",
        "Database",
        "`compile_commands.json`",
        module="stages.commands",
    ),
    StageKind(
        "CHECK",
        ("#4f6d2f", "#a9cf8e"),
        "the library, unless the definition is interpreted; `signature.json`, the definition's files",
        "Checking",
        "`<slug>.<cpu, cuda or interpreted>.json`",
        module="stages.check",
        also=("worker.server", "frontends"),
    ),
    StageKind(
        "SASS",
        ("#8c3a3a", "#e39a9a"),
        "the cubin",
        "Disassembly",
        "`<arch>.sass`",
        module="stages.sass",
        also=(RUNNER,),
        memory={"nvdisasm": 64 * MIB},
    ),
    StageKind(
        "IR",
        ("#5a5fa8", "#a9b4f0"),
        "as `LOWER`",
        "Showing",
        "`ir/index.txt`; beside it, a file for each pass",
        module="stages.ir",
        also=("worker.server", "frontends"),
    ),
)
"""All stages in the order of the pipeline, the probing of tools first, and last what only looks at it."""

LISTINGS = ("sass", "ptx")
"""Texts of device code that are made when they are asked for, by the ending of their files."""

KINDS = {kind.label: kind for kind in STAGES}
"""Label -> stage."""

MEMORY_KIB = {tool: kib for kind in STAGES for tool, kib in kind.memory.items()}
"""Kind of tool -> KiB that its first run is taken to need."""
