"""What a user may choose about the lowering: configs of TVM's passes. Real builds."""

from __future__ import annotations

from conftest import Project

VECTORS = """\
from kernelwright import kernel
from tvm.script import tirx as T


@kernel(outputs=["y"])
def double():
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((1024,), "float32"), y: T.Buffer((1024,), "float32")):
        for b in T.thread_binding(8, thread="blockIdx.x"):
            for t in T.thread_binding(32, thread="threadIdx.x"):
                for v in T.vectorized(4):
                    with T.sblock("y"):
                        j = T.axis.spatial(1024, b * 128 + t * 4 + v)
                        y[j] = x[j] * T.float32(2)

    return main
"""
DOUBLE = "build/kernels/demo/double/default/cuda"


def test_a_pass_config_reaches_the_device_code_and_is_in_the_signature(project: Project) -> None:
    for name in ("add_one", "scale"):
        (project.folder / f"kernels/{name}.py").unlink(missing_ok=True)
    path = project.write("kernels/double.py", VECTORS)
    project.scons("TARGETS=cuda")
    source, cubin = f"{DOUBLE}/device.cu", f"{DOUBLE}/sm_80.cubin"
    before = project.files(DOUBLE)
    assert b"float4" in before[source]

    path.write_text(VECTORS.replace("@kernel(", '@kernel(pass_configs={"tirx.disable_vectorize": True}, '))
    run = project.scons("TARGETS=cuda")
    assert [stage for stage in run.stages if "double" in stage][:2] == [
        *("CUBIN double/default sm_80", "LINK double"),
    ]
    after = project.files(DOUBLE)
    assert b"float4" not in after[source] and after[cubin] != before[cubin]
    assert project.scons("TARGETS=cuda").stages == []


def test_a_pass_config_that_tvm_does_not_have_ends_the_build_at_its_line(project: Project) -> None:
    project.write("kernels/double.py", VECTORS.replace("@kernel(", '@kernel(pass_configs={"tirx.unroll": 1}, '))
    run = project.scons(ok=False)
    assert "kernels/double.py:5 double [discover]: TVM has 35 pass configs, and 'tirx.unroll' is none" in run.output
    assert "did you mean tirx.UnrollLoop" in run.output
