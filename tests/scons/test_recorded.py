"""Variants that were recorded: ``recorded()`` in a definition makes them those that are built, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kernelwright.define.recorded import parse, text_of
from kernelwright.ondemand.record import note
from support.demand import Demand
from support.project import CUBE, Project

IMPORT = "from kernelwright import grid, kernel"
DECORATOR = '@kernel(configs=recorded("configs.json"), outputs=["y"])'


@pytest.fixture
def recording(cpu_project: Project) -> Project:
    """A project whose only kernel, ``scale``, has the configs that are recorded."""
    (cpu_project.folder / "kernels/add_one.py").unlink()
    cpu_project.replace("kernels/scale.py", IMPORT, f"{IMPORT}, recorded")
    cpu_project.replace("kernels/scale.py", 'grid(dtype=["float32", "float16"])', 'recorded("configs.json")')
    return cpu_project


def write(project: Project, *configs: dict[str, Any], kernel: str = "scale") -> Path:
    return project.write("kernels/configs.json", text_of({kernel: configs}))


def variants(project: Project) -> list[dict[str, Any]]:
    printed = project.python("import demo, json; print(json.dumps(demo.scale.variants))")
    listed: list[dict[str, Any]] = json.loads(printed)
    return listed


def test_the_recorded_configs_are_the_variants_and_a_change_builds_what_changed(recording: Project) -> None:
    path = write(recording, {"dtype": "float32"}, {"dtype": "float16"})
    assert recording.scons("-j2").labels["LOWER"] == 2
    assert variants(recording) == [{"dtype": "float16"}, {"dtype": "float32"}]
    assert recording.scons("-j2").stages == []

    note(path, "scale", {"dtype": "float64"})
    run = recording.scons("-j2")
    assert [stage for stage in run.stages if stage.startswith("LOWER")] == ["LOWER scale/dtype-float64 x86-64-v3"]
    assert variants(recording) == [{"dtype": "float16"}, {"dtype": "float32"}, {"dtype": "float64"}]

    write(recording, {"dtype": "float32"})
    run = recording.scons("-j2")
    assert "LOWER" not in run.labels and "LINK" in run.labels
    assert variants(recording) == [{"dtype": "float32"}]
    assert recording.scons("-j2").stages == []

    path.write_text(path.read_text() + "\n")
    assert recording.scons("-j2").stages == [], "the same configs, in another text"


def test_strict_mode_allows_the_file_and_another_reader_of_it_depends_on_it(recording: Project) -> None:
    write(recording, {"dtype": "float32"})
    recording.scons("-j2", "--strict")
    assert recording.scons("-j2", "--strict").stages == []
    recording.replace("kernels/scale.py", IMPORT, f"{IMPORT}, recorded\nopen('kernels/configs.json').read() #")
    run = recording.scons("-j2", "--strict", ok=False)
    assert "reads kernels/configs.json, which is neither imported nor declared" in run.output


def test_a_default_is_built_until_there_are_recorded_configs(recording: Project) -> None:
    default = 'recorded("configs.json", default=[{"dtype": "float16"}])'
    recording.replace("kernels/scale.py", 'recorded("configs.json")', default)
    recording.scons("-j2")
    assert variants(recording) == [{"dtype": "float16"}]
    write(recording, {"dtype": "float32"}, kernel="another")
    assert recording.scons("-j2").stages == []
    write(recording, {"dtype": "float32"})
    recording.scons("-j2")
    assert variants(recording) == [{"dtype": "float32"}]
    (recording.folder / "kernels/configs.json").unlink()
    assert "LOWER" not in recording.scons("-j2").labels
    assert variants(recording) == [{"dtype": "float16"}]


def of_file(text: str | None, said: str) -> tuple[str, str | None, str]:
    return '"FILE"', text, f"{said}|run your program with KERNELWRIGHT_RECORD=FILE"


WRONG = [
    of_file(None, "there is no file FILE"),
    of_file(text_of({"other": [{}]}), "FILE has no configs of 'NAME'"),
    of_file('{"schema": 1, "kernels"', "FILE is damaged: "),
    of_file(text_of({"NAME": [{"dtype": "float32", "m": 1}]}), "FILE: config key 'm' is not a parameter"),
    of_file(text_of({"NAME": [{}]}), "FILE: config {} gives no value for parameter 'dtype'"),
    of_file('{"schema": 1, "kernels": {"NAME": []}}', "FILE: configs is empty"),
    ("'/tmp/FILE'", None, "expected a path relative to the folder of the definition file"),
    ("7", None, "recorded() got 7"),
    ("'../../configs.json'", None, "which is outside of the project"),
    ("'.'", None, ". cannot be read: Is a directory|"),
]
"""The argument of ``recorded``, the content of the file, and what is said; a ``|`` parts the begin of a kernel's error
from words that are in it."""


def test_what_is_wrong_with_the_file_is_said_with_kernel_place_and_remedy(recording: Project) -> None:
    outside = {f"scale{number}": [{"dtype": "float32"}] for number in range(len(WRONG))}
    (recording.folder.parent / "configs.json").write_text(text_of(outside))
    definition = (recording.folder / "kernels/scale.py").read_text()
    (recording.folder / "kernels/scale.py").unlink()
    line = 1 + definition.splitlines().index(DECORATOR)

    def filled(text: str, number: int) -> str:
        return text.replace("FILE", f"configs{number}.json").replace("NAME", f"scale{number}")

    for number, (argument, text, _) in enumerate(WRONG):
        made = definition.replace('"configs.json"', argument).replace("scale", "NAME")
        recording.write(f"kernels/scale{number}.py", filled(made, number))
        if text is not None:
            recording.write(f"kernels/configs{number}.json", filled(text, number))
    run = recording.scons("-j2", "-k", ok=False)
    for number, (_, _, said) in enumerate(WRONG):
        begin, parted, more = filled(said, number).partition("|")
        if not parted:
            assert begin in run.output
            continue
        error = run.errors[f"scale{number}"]
        assert error.startswith(f"kernels/scale{number}.py:{line} scale{number} [discover]: {begin}"), error
        assert more in error, error


def test_keys_have_the_order_of_the_default_or_of_the_parameters(recording: Project) -> None:
    recording.replace("kernels/scale.py", "dtype: str", "dtype: str, block: int = 1, also: int = 2")
    write(recording, {"also": 3, "block": 4, "dtype": "float32"})
    recording.scons("-j2")
    assert list(variants(recording)[0]) == ["dtype", "block", "also"]
    recording.replace("kernels/scale.py", '"configs.json"', '"configs.json", default=[{"also": 1, "dtype": "float32"}]')
    recording.scons("-j2")
    assert list(variants(recording)[0]) == ["also", "dtype", "block"]


# ---- from the program to the package


def test_what_a_program_compiles_and_calls_is_what_is_built(recording: Project) -> None:
    listed = '"configs.json", default=[{"dtype": "float32"}, {"dtype": "float64"}, {"dtype": "float16"}]'
    recording.replace("kernels/scale.py", '"configs.json"', listed)
    demand = Demand(recording)
    program = """
        scale = kw.load("kernels/scale.py").scale
        x = np.ones(3, "float64")
        assert array(scale(x)).tolist() == [2, 2, 2]
        with kw.record("blocks.json"):
            scale(x), scale(x)
            scale.par_compile([{"dtype": "float32"}])
    """
    demand.run(program)
    assert not (recording.folder / "kernels/configs.json").exists()
    found = parse((recording.folder / "blocks.json").read_bytes())
    assert found == {"scale": [{"dtype": "float32"}, {"dtype": "float64"}]}, "also what was compiled before the block"

    for dtype in ("int32", "float16"):
        more = f'{program}\n        scale.compile(dtype="{dtype}")'
        demand.run(more, env={"KERNELWRIGHT_RECORD": "kernels/configs.json"})
    recording.scons("-j2")
    assert variants(recording) == [{"dtype": "float16"}, {"dtype": "float64"}, {"dtype": "int32"}]


# ---- the setting


def test_the_setting_gives_the_kernels_that_its_file_names_these_variants_and_leaves_the_others(cpu_project):
    cpu_project.write("kernels/cube.py", CUBE)
    cpu_project.scons("-j2")
    note(cpu_project.folder / "configs.json", "scale", {"dtype": "float64"})
    note(cpu_project.folder / "configs.json", "scale", {"dtype": "float32"})
    note(cpu_project.folder / "configs.json", "cube", {"dtype": "float64"})
    run = cpu_project.scons("-j2", "CONFIGS=configs.json")
    assert [stage for stage in run.stages if stage.startswith("LOWER")] == ["LOWER scale/dtype-float64 x86-64-v3"]
    assert variants(cpu_project) == [{"dtype": "float32"}, {"dtype": "float64"}]
    others = "import demo; print(len(demo.add_one.variants), demo.cube.variants == demo.cube_backward.variants)"
    assert cpu_project.python(others) == "1 True\n"
    assert cpu_project.scons("-j2", "CONFIGS=configs.json").stages == []
    assert cpu_project.scons("-j2", "check", "CONFIGS=configs.json").labels["CHECK"] == 5

    note(cpu_project.folder / "configs.json", "scale", {"dtype": "float16"})
    run = cpu_project.scons("-j2", "CONFIGS=configs.json")
    assert "LOWER" not in run.labels and len(variants(cpu_project)) == 3

    cpu_project.scons("-j2")
    assert variants(cpu_project) == [{"dtype": "float32"}, {"dtype": "float16"}]


def test_a_kernel_that_the_file_names_and_that_is_not_built_is_told(cpu_project: Project) -> None:
    note(cpu_project.folder / "configs.json", "softmax", {"dtype": "float64"})
    for _ in range(2):
        run = cpu_project.scons("add_one", "CONFIGS=configs.json")
        assert "configs.json names 'softmax', and no such kernel is built" in run.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "the setting configs names configs.json, which does not exist"),
        ('{"schema": 1, "kernels": {"scale": []}}', "configs.json lists no config of 'scale'"),
        (text_of({"scale": [{"dtype": "float32", "m": 1}]}), "config key 'm' is not a parameter of the definition"),
        (text_of({"add_one": [{"a": "B"}, {"a": "b"}]}), "two of the configs in configs.json would have names like a-"),
    ],
)
def test_what_is_wrong_with_the_file_of_the_setting_is_said(cpu_project: Project, text: str | None, said: str) -> None:
    if text is not None:
        cpu_project.write("configs.json", text)
    run = cpu_project.scons("-j2", "CONFIGS=configs.json", ok=False)
    assert said in run.output and "remedy: " in run.output
