"""``scons --why`` and ``KERNELWRIGHT_JIT`` say which input of what is made differs from the last time."""

from __future__ import annotations

import re
from collections.abc import Callable

from support.demand import Demand
from support.project import SCALE, Project


def reasons(project: Project, *arguments: str, **variables: str) -> dict[str, str]:
    """What a run says of the stages that run: their label, and why each of them does."""
    lines = project.scons("--why", *arguments, env=variables).output.splitlines()
    found: dict[str, str] = {}
    for line in lines:
        if match := re.match(r"kernelwright: ([A-Z]+) \S+.* runs: (.*)", line):
            found[match[1]] = f"{found.get(match[1], '')} | {match[2]}"
    ran = {line.split()[3 if "CACHED" in line else 1] for line in lines if line.startswith("[ ")}
    assert set(found) == ran, "each stage that runs says why"
    return found


def test_why_names_what_differs_for_each_kind_of_edit(project: Project) -> None:
    (project.folder / "kernels/add_one.py").unlink()
    (project.folder / "helper.py").write_text("FACTOR = 2.0\n")
    project.write("kernels/scale.py", "from helper import FACTOR\n" + SCALE.replace('"float32", ', ""))
    project.built()

    def edit(name: str, old: str, new: str) -> Callable[[], None]:
        return lambda: project.replace(name, old, new)

    def append(name: str, line: str) -> Callable[[], None]:
        return lambda: (project.folder / name).open("a").write(f"{line}\n") and None

    output = project.folder / "build/kernels/demo/scale/scale.so"
    edits: list[tuple[Callable[[], object], str, str]] = [
        (edit("helper.py", "2.0", "3.0"), "LOWER", "helper.py changed"),
        (edit("kernels/scale.py", "T.cast(2.0", "T.cast(FACTOR"), "LOWER", "kernels/scale.py changed"),
        (append("pyproject.toml", 'nvcc_flags = ["-use_fast_math"]'), "CUBIN", 'flags was [], is ["-use_fast_math"]'),
        (edit("pyproject.toml", '"sm_80"', '"sm_80", "sm_90"'), "WRAP", "sm_90"),
        (edit("kernels/scale.py", '"float16"', '"float64"'), "LOWER", "nothing is known of an earlier time"),
        (output.unlink, "LINK", "an output was missing, or not as it was built"),
        (append("pyproject.toml", 'compress = "size"'), "WRAP", "compress"),
        (append("pyproject.toml", "max_spills = 100"), "LINK", "limits was [null,null], is [null,100]"),
        (append("pyproject.toml", 'debug = "lineinfo"'), "PTX", "nothing is known of an earlier time"),
        (edit("pyproject.toml", 'compress = "size"', 'backends = ["tvm_ffi", "torch"]'), "WRAP", "nothing is known"),
    ]
    for change, label, why in edits:
        change()
        found = reasons(project)
        assert why in found[label], (label, why, found)
        assert reasons(project) == {}, "a second run has nothing to do"


def test_jit_may_be_off_or_say_why_it_compiles(cpu_project: Project) -> None:
    demand = Demand(cpu_project)
    demand.definition("times")
    program = """
    times = kw.load("kernels/times.py").times
    for dtype in ("float32", "float64"):
        print((array(times(np.ones((1, 4), dtype))) == 2).all())
    """
    first = demand.run(program, env={"KERNELWRIGHT_JIT": "warn"})
    assert first.stdout == "True\nTrue\n"
    one, other = (line for line in first.stderr.splitlines() if "is compiled for" in line)
    assert one.endswith("for the backend tvm_ffi: the cache has no kernel of that name")
    assert other.endswith(': configs[0].dtype was "float32", is "float64"')
    quiet = demand.run(program, env={"KERNELWRIGHT_JIT": "off"})
    assert (quiet.stdout, quiet.stderr) == ("True\nTrue\n", ""), "what the cache has needs no compiler"
    demand.project.replace("kernels/times.py", '"dtype": "float64"', '"dtype": "float16"')
    refused = demand.run(
        """
        times = kw.load("kernels/times.py").times
        try:
            times(np.ones((1, 4), "float32"))
        except Exception as error:
            print(error)
        """,
        env={"KERNELWRIGHT_JIT": "off"},
    )
    assert (
        "times/dtype-float32: it is not compiled, and compile on demand is off: kernels/times.py changed"
        in refused.stdout
    )
    assert "KERNELWRIGHT_RECORD=configs.json" in refused.stdout and "KERNELWRIGHT_JIT=on" in refused.stdout
    assert demand.rest() == []
