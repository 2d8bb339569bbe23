"""What is run in place of nvcc for a source with host code of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelwright.backends.commands import SOURCE_LIBRARY
from kernelwright.core.errors import KernelwrightError, Where
from kernelwright.processes.tools import ToolCall, ToolResult
from kernelwright.stages.object import name_of
from kernelwright.toolchain.host_code import ObjectJob, compile_object, module_name, programs_of, usage_by_arch
from kernelwright.toolchain.plain_flags import without_threads

JOB = ObjectJob("csrc/scale.cu", "csrc-scale.cu-0123", ("sm_80", "sm_90a"), (), folder=Path("/p"), where=Where("scale"))

HEAD = """\
#$ _NVVM_BRANCH_=nvvm
#$ CICC_PATH=/cuda/nvvm/bin
#$ PATH=/cuda/bin:/usr/bin
"""

HOST = """\
#$ "/usr/bin"/cc -D__CUDACC__ -E -x c++ "csrc/scale.cu" -o "/s/tmpxft_0000aa_00000000-5_scale.cpp4.ii"
#$ cudafe++ --orig_src_file_name "csrc/scale.cu" --orig_src_path_name "/p/csrc/scale.cu" --gen_module_id_file \
--module_id_file_name "/s/tmpxft_0000aa_00000000-4_scale.module_id" "/s/tmpxft_0000aa_00000000-5_scale.cpp4.ii"
"""

DEVICE = """\
#$ "/usr/bin"/cc -D__CUDA_ARCH__={0}0 -E -x c++ "csrc/scale.cu" -o "/s/tmpxft_0000aa_00000000-{0}_scale.cpp1.ii"
#$ "$CICC_PATH/cicc" --orig_src_path_name "/p/csrc/scale.cu" -arch compute_{0} --module_id_file_name \
"/s/tmpxft_0000aa_00000000-4_scale.module_id" "/s/tmpxft_0000aa_00000000-{0}_scale.cpp1.ii" -o "/s/{0}.ptx"
#$ ptxas -arch=sm_{0} "/s/{0}.ptx" -o "/s/{0}.cubin"
"""

LAST = """\
#$ fatbinary "--image3=kind=elf,sm=80,file=/s/80.cubin" --embedded-fatbin="/s/tmpxft_0000aa_00000000-3_scale.fatbin.c"
#$ rm /s/tmpxft_0000aa_00000000-3_scale.fatbin
#$ "/usr/bin"/cc -c -x c++ "/s/tmpxft_0000aa_00000000-6_scale.cudafe1.cpp" -o "/s/csrc-scale.cu-0123.o"
"""


def test_the_host_s_code_and_that_of_each_arch_need_each_other_only_at_the_end():
    programs = programs_of(HEAD + HOST + DEVICE.format(80) + DEVICE.format(90) + LAST, JOB, "/s")
    assert [name for name, _ in programs.first] == ["host", "device 1", "device 2"]
    host, *device = (text for _, text in programs.first)
    assert "cudafe++" in host and "cicc" not in host and "--gen_module_id_file" not in host
    for arch, text in zip((80, 90), device, strict=True):
        assert f"compute_{arch}" in text and f"sm_{arch}" in text and text.startswith("export CICC_PATH=")
        assert text.count(" && ") == 2 and f"headers-{2 if arch == 80 else 5}.d" in text
    assert "fatbinary" in programs.last and "(cd /s && " in programs.last and "rm /s" not in programs.last
    every = "".join([*(text for _, text in programs.first), programs.last])
    assert "tmpxft" not in every and "/p/csrc" not in every
    assert programs.module_file == "kw_4_scale.module_id" and f"/s/{programs.module_file}" in host


def test_each_function_of_an_arch_has_its_registers() -> None:
    said = "Compiling entry function '{}' for 'sm_{}'\nptxas info    : Used {} registers\n"
    output = "".join(said.format(*one) for one in (("a", 80, 16), ("a", "90a", 18), ("b", 80, 255), ("b", "90a", 8)))
    usage = usage_by_arch(output, ("sm_80", "sm_90a", "sm_120", "compute_120"))
    registers = {arch: {name: used["registers"] for name, used in each.items()} for arch, each in usage.items()}
    assert registers == {"sm_80": {"a": 16, "b": 255}, "sm_90a": {"a": 18, "b": 8}, "sm_120": {}}


def test_the_name_of_a_module_is_that_of_its_object_in_the_form_of_the_compiler_s_own():
    begin, length, *rest = module_name(JOB).removeprefix("_").split("_", 2)
    name, end = rest[0].rsplit("_", 1)
    assert (int(length), name) == (len("csrc_scale_cu_0123"), "csrc_scale_cu_0123")
    assert len(begin) == len(end) == 8 and int(begin + end, 16)


def test_a_source_without_device_code_is_one_command():
    programs = programs_of(HEAD + '#$ "/usr/bin"/cc -c -x c++ "csrc/scale.cc" -o "/s/scale.o"\n', JOB, "/s")
    assert (programs.first, programs.module_file) == ((), "") and "-frandom-seed=csrc-scale.cu-0123" in programs.last


@pytest.mark.parametrize(
    ("dry_run", "expected"),
    [
        (HEAD, "its dry run shows no programs"),
        (HEAD + HOST + DEVICE.format(80) + "#$ nvlink x\n" + LAST, "it would run nvlink"),
        (HEAD + DEVICE.format(80) + HOST + LAST, "in this order"),
        (HEAD + HOST.replace("--gen_module_id_file ", "") + DEVICE.format(80) + LAST, "in this order"),
    ],
)
def test_what_is_not_known_is_left_to_nvcc(dry_run: str, expected: str):
    with pytest.raises(ValueError, match=expected):
        programs_of(dry_run, JOB, "/s")


@pytest.mark.parametrize("source", ["a.cu", "libkernelwright-a.cc", "\u65e5\u672c.cxx", ".cpp", "d/" * 200 + "a.cc"])
def test_every_source_has_a_name_that_a_file_can_have_and_verify_knows(source):
    name = name_of(source, [])
    assert SOURCE_LIBRARY.fullmatch(f"_lib/{name}.so") and len(f"compile_{name}.json") < 200
    assert not SOURCE_LIBRARY.fullmatch("_lib/libkernelwright-0123456789abcdef.so")


@pytest.mark.parametrize("given", ["-t 4", "-t4", "-t=4", "--threads 0", "--threads=0", "-threads 4"])
def test_flags_for_threads_decide_nothing(given):
    assert without_threads(["-Xptxas", "-t", *given.split(), "-O2"]) == ("-Xptxas", "-t", "-O2")


def test_a_path_that_is_written_in_another_way_has_the_same_name():
    assert name_of("a/../b/./c.cu", []) == name_of("b/c.cu", [])


def test_what_takes_too_long_is_named_with_its_source(tmp_path):
    """And not the shell that runs it."""
    calls: list[ToolCall] = []

    def run(call: ToolCall) -> ToolResult:
        calls.append(call)
        if "cicc" in call.command[-1]:
            raise KernelwrightError("it took too long")
        dry = HEAD + HOST + DEVICE.format(80) + LAST if "--dryrun" in call.command else ""
        return ToolResult(dry.replace("/s/", f"{tmp_path}/"), 0.0, 0.0, 0)

    tools: Any = SimpleNamespace(run=run, project_root=tmp_path)
    compiler: Any = SimpleNamespace(path="/usr/bin/cc")
    job = replace(JOB, folder=tmp_path, shown="csrc/scale.cu")
    with pytest.raises(KernelwrightError, match="it took too long"):
        compile_object(job, SimpleNamespace(path="nvcc"), compiler, tmp_path, tools, job)  # type: ignore[arg-type]
    assert {call.called for call in calls} == {"", "cudafe++ for csrc/scale.cu", "cicc or ptxas for csrc/scale.cu"}
