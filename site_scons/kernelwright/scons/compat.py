"""The parts of SCons's private API that we use, except for those that store signatures: they are in ``journal.py``.

They belong to the release that pyproject.toml pins. A newer SCons may have changed any of them;
``tests/unit/test_scons_compat.py`` then says what to look at.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import SCons.Action
import SCons.Defaults
import SCons.Errors
import SCons.Node
import SCons.Node.Alias
import SCons.Node.FS
import SCons.Script
import SCons.Script.Main
import SCons.Taskmaster.Job

RELEASE = "4.11.1"
"""The release of SCons that all this was written for."""

ActionBase: Any = SCons.Action._ActionAction
"""The base class of SCons's own actions: it shows the line, and hands the nodes over."""

DONE = (SCons.Node.executed, SCons.Node.up_to_date)
"""The states of a node that was built, or that needed no building."""


class _Late:
    """Runs a function as SCons's action.

    SCons (4.11.1) takes all that a function has around it for a part of the action's signature, and writes it as a
    text. For the stages of many kernels that takes minutes. Of an object that can be called it takes the code only.
    """

    def __init__(self, run: Callable[[], str]) -> None:
        self._run = run

    def __call__(self, target: Any, source: Any, env: Any) -> Any:
        """Run it; None, or SCons's error."""
        problem = self._run()
        return SCons.Errors.BuildError(node=target[0], errstr=problem, status=2, exitstatus=2) if problem else None


def late_action(env: Any, run: Callable[[], str]) -> Any:
    """An action that runs a function when all that it waits for is there. It shows no line of its own.

    Arguments:
        run: returns what went wrong; empty: nothing did.
    """
    return env.Action(_Late(run), lambda target, source, env: None)


def option(name: str) -> Any:
    """The value of an option of the command line; None for one that was not added to SCons's own."""
    try:
        return SCons.Script.GetOption(name)
    except AttributeError:
        return None


def keep_going() -> None:
    """Have SCons go on after an error, as with ``-k``."""
    SCons.Script.Main.OptionsParser.values.keep_going = True


def restore_defaults() -> None:
    """Have ``Default()`` count if the only target of the command line was the value of one of our options.

    SCons takes ``2/8`` of ``--shard 2/8`` for a target until it knows the option, and then forgets the target, but not
    that there was one.
    """
    if not SCons.Script.COMMAND_LINE_TARGETS:
        for targets in (SCons.Script.BUILD_TARGETS, SCons.Script._build_plus_default):
            vars(targets).pop("_add_Default", None)
            vars(targets).pop("_clear", None)


def ask_for(target: str) -> None:
    """Have SCons build a target, and nothing else, as if it were on the command line."""
    for targets in (SCons.Script.BUILD_TARGETS, SCons.Script._build_plus_default):
        targets.clear()
    SCons.Script._Add_Targets([target])


def fail_at_the_end() -> None:
    """Have SCons end with status 2, though no target failed as far as it knows."""
    SCons.Script.Main.exit_status = SCons.Script.Main.this_build_status = 2


def find_alias(name: str) -> Any:
    """The node of an alias; None: there is none of that name."""
    return SCons.Node.Alias.default_ans.lookup(name)


def add_alias(name: str) -> None:
    """Make a name a target that needs nothing. ``env.Alias`` takes twenty times as long."""
    SCons.Node.Alias.default_ans.Alias(name)


def aliases() -> list[str]:
    """The names of all aliases."""
    return list(SCons.Node.Alias.default_ans)


def unknown_targets() -> list[str]:
    """The targets of the command line that nothing makes; SCons says only that it does not know how to make them.

    Empty before SCons has read all build files, because one of them may still add such a target.
    """
    if SCons.Script.Main.num_jobs is None:
        return []

    def is_known(name: str) -> bool:
        if find_alias(name):
            return True
        node = SCons.Node.FS.get_default_fs().Entry(name)
        return bool(node.has_builder() or node.exists())

    return [name for name in SCons.Script.COMMAND_LINE_TARGETS if not is_known(name)]


def cache_folder(env: Any) -> str | None:
    """The folder that a build file has given to ``CacheDir``, if it has.

    ``get_CacheDir`` would make the default environment, and that looks for compilers.
    """
    environments: Iterable[Any] = (env, SCons.Defaults._default_env)
    return next((path for e in environments if (path := getattr(e, "_CacheDir_path", None))), None)


def was_built(node: Any) -> bool:
    """Whether SCons has built a node."""
    return bool(node.get_state() == SCons.Node.executed)


def was_up_to_date(node: Any) -> bool:
    """Whether SCons has found a node up to date."""
    return bool(node.get_state() == SCons.Node.up_to_date)


def is_done(node: Any) -> bool:
    """Whether SCons has built a node or found it up to date."""
    return node.get_state() in DONE


def is_dealt_with(node: Any) -> bool:
    """Whether SCons has built a node, found it up to date, or seen it fail."""
    return node.get_state() in (*DONE, SCons.Node.failed)


def is_folder(node: Any) -> bool:
    """Whether a node of the command line is a folder."""
    return isinstance(node, SCons.Node.FS.Dir) or (isinstance(node, SCons.Node.FS.Entry) and node.isdir())


@contextlib.contextmanager
def unchecked_nodes() -> Iterator[None]:
    """Let nodes be made whatever is on disk: SCons raises an internal error if there is a folder in a file's place."""
    check = SCons.Node.FS.diskcheck_match
    before = check.func
    check.func = SCons.Node.FS.ignore_diskcheck_match
    try:
        yield
    finally:
        check.func = before


def on_interrupt(function: Callable[[], None]) -> None:
    """Have Ctrl-C call a function; SCons's signal handler only notes it, and then waits for the actions to end."""
    state = SCons.Taskmaster.Job.InterruptState
    note = state.set

    def set_and_call(self: Any) -> None:
        note(self)
        # In a thread, because the handler may have interrupted code that holds a lock that the function needs.
        threading.Thread(target=function).start()

    state.set = set_and_call
