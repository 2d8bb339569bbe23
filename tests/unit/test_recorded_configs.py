"""What workers do while a program records configs: lowerings do not depend on the file, and discovery does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kernelwright.ondemand.record import note
from kernelwright.stages.selection import select
from support.scons_tree import GEMM, Inputs, new_graph, stages_of
from support.workers_project import COPY, Project

TEXT = COPY.format(name="k", factor="m").replace("import kernel", "import kernel, recorded").replace("k():", "k(m):")
DECORATOR = '@kernel(configs=recorded("configs.json", default=[{"m": 1}]))'
TEXT = TEXT.replace("@kernel", f'print("executed")\n{DECORATOR}')


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("recorded"))
    with project.pool:
        yield project


def test_a_worker_goes_on_lowering_while_configs_are_recorded(project: Project) -> None:
    file = str(project.write("kernels/k.py", TEXT).relative_to(project.folder))
    path = project.folder / "kernels/configs.json"
    first = project.discover(file)
    assert (first["recorded"], first["kernels"][0]["configs"]) == ({"kernels/configs.json": ""}, [{"m": 1}])
    assert list(first["dependencies"]) == ["kernels/k.py"]
    executed = len(project.printed)

    note(path, "k", {"m": 5})
    lowered = project.lower(file, "k", slug="m-1", config={"m": 1})
    assert list(lowered["dependencies"]) == ["kernels/k.py"]
    unlisted = project.lower(file, "k", slug="m-5", config={"m": 5}, listed=False)
    assert len(project.printed) == executed, "nothing that it executed has changed"

    listed = project.lower(file, "k", slug="m-5", config={"m": 5})
    assert len(project.printed) == executed + 1
    assert listed["contents"] == unlisted["contents"]
    again = project.lower(file, "k", slug="m-5", config={"m": 5}, listed=False)
    assert again["contents"] == unlisted["contents"], "it was recorded in the meantime"

    note(path, "k", {"m": 6})
    found = project.discover(file)
    assert found["kernels"][0]["configs"] == [{"m": 5}, {"m": 6}]
    assert list(found["recorded"].values()) != [""]


def test_names_that_are_alike_are_in_the_signature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of configs may be in a file of its own, which is not among the contents of the definition."""
    alike = replace(GEMM, configs=({"m": "a-b"}, {"m": "a_b"}), slugs=("m-a-b", "m-a_b"))
    found = []
    for number, listed in enumerate((replace(alike, configs=alike.configs[:1], slugs=alike.slugs[:1]), alike)):
        graph = new_graph(tmp_path / str(number), monkeypatch, Inputs(kernel=listed))
        graph.definitions.add_kernel(Inputs(kernel=listed).definition, select(listed, Inputs().settings))
        found.append(stages_of(graph)["LOWER gemm/m-a-b cuda"])
    assert found[0].fingerprint != found[1].fingerprint
    assert found[0].request.asked.symbol == "kw_gemm__m_a_b__cuda"
    assert found[1].request.asked.symbol.startswith("kw_gemm__m_a_b_")
