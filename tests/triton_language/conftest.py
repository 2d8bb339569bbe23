"""Runs of ``scons`` whose workers have PyTorch from the start, as the programs in this folder import it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.project import Project


@pytest.fixture(scope="module", autouse=True)
def _with_torch() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Project, "imported", ("support.torch_ready", *Project.imported))
        yield
