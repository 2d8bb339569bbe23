"""SCons's nodes of the stages of a run."""

from __future__ import annotations

from typing import Any

import SCons.Script

from ..stages.stage import Stage
from . import compat

ON_REQUEST = ("CHECK", "IR")
"""Stages that run only if their target is asked for, whatever folder they write into. With ``dump_ir`` the package also
waits for IR."""


class Nodes:
    """The nodes of the files of all stages.

    Arguments:
        env: an environment, for looking targets up.
    """

    def __init__(self, env: Any) -> None:
        self.stages: list[Stage] = []
        self._env = env
        self._nodes: dict[str, Any] = {}

    def node(self, path: str) -> Any:
        """The node of a file; the name may have a dollar sign, which ``env.File`` would expand."""
        if path not in self._nodes:
            self._nodes[path] = self._env.fs.File(path)
        return self._nodes[path]

    def nodes_of(self, stage: Stage) -> list[Any]:
        """The nodes of a stage's outputs."""
        return [self.node(path) for path in stage.paths]

    def node_of(self, stage: Stage) -> Any:
        """The node of a stage's first output, whose state is that of the stage."""
        return self.node(stage.paths[0])

    def requested(self) -> list[Any]:
        """The nodes of the stages that the requested targets need, up to date or not."""
        makers = {node: stage for stage in self.stages for node in self.nodes_of(stage)}
        todo = [node for target in SCons.Script.BUILD_TARGETS for node in self._resolve(target)]
        needed: set[int] = set()
        seen = set(todo)
        while todo:
            node = todo.pop()
            stage = makers.get(node)
            if stage is not None:
                needed.add(id(stage))
            sources = map(self.node, stage.sources) if stage else node.sources
            new = [source for source in (*sources, *(node.prerequisites or ())) if source not in seen]
            seen.update(new)
            todo += new
        if not needed:
            needed = {id(stage) for stage in self.stages if stage.label not in ON_REQUEST}
        return [self.node_of(stage) for stage in self.stages if id(stage) in needed]

    def _resolve(self, target: Any) -> list[Any]:
        """The nodes of a target of the command line or of Default(); for a folder, all that is made below it."""
        node = target
        if isinstance(target, str):
            node = compat.find_alias(target) or self._env.fs.Entry(target)
        if not compat.is_folder(node):
            return [node]
        outputs = [node for stage in self.stages for node in self.nodes_of(stage) if stage.label not in ON_REQUEST]
        return [output for output in outputs if output.is_under(node)]
