"""The pages about compile on demand: the first session works as it is printed, and so does each line of the tables."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from kernelwright.ondemand.options import Options
from support.demand import READY, Demand
from support.environments import install, linked, needed, run
from support.forked import starter
from support.pages import Block, agrees, blocks, commands
from support.project import CALLING, ROOT, Project

PAGE = ROOT / "docs/on-demand.md"

CONVERSATION = """
import doctest, sys
class Runner(doctest.DocTestRunner):
    def report_failure(self, out, test, example, got):
        super().report_failure(out, test, example, got)
        out("[failed] " + example.source)
    def report_unexpected_exception(self, out, test, example, info):
        super().report_unexpected_exception(out, test, example, info)
        out("[failed] " + example.source)
test = doctest.DocTestParser().get_doctest({text!r}, {{"__name__": "__main__"}}, "the page", None, 0)
assert test.examples
Runner(optionflags=doctest.ELLIPSIS).run(test)
"""

SCRIPT = "import runpy, sys; sys.argv = {arguments!r}; runpy.run_path({file!r}, run_name='__main__')"

COMMAND = "import sys; from kernelwright.cli import main; sys.exit(main({arguments!r}))"


class Session(Project):
    """Somebody who does what the page says, in a folder of a git tree.

    What is typed at Python's prompt is one conversation until the next command.
    """

    def __init__(self, folder: Path, factory: pytest.TempPathFactory, **more: str) -> None:
        super().__init__(folder)
        self._more = more  # variables of all that is run
        (folder / ".git").mkdir(exist_ok=True)
        Demand(self, folder / ".cache/kernelwright")
        self._factory = factory
        self._typed: list[str] = []
        self.failed: list[str] = []
        self.output = ""

    def follow(self, block: Block) -> None:
        """Do what a block says."""
        if block.text.startswith(">>> "):
            self._typed.append(block.text)
        elif block.language == "text":
            self.end_conversation()
            for command, expected in commands(block):
                self.command(command, expected)
        else:
            named = re.search(r"`([\w./]+)`[^`]*:$", block.prose)
            assert named, block
            self.write(named[1], block.text)

    def command(self, command: str, expected: str) -> None:
        """Type a command, and look at what it prints."""
        status, output = self._type(command)
        if status or (expected and not agrees(expected, output)):
            self.failed.append(command)
            self.output += f"{command}\n{output}\nended with {status}. The page has:\n{expected}"

    def end_conversation(self) -> None:
        """Run what was typed."""
        if self._typed:
            self.try_all(CONVERSATION.format(text="\n".join(self._typed)))
            self._typed = []

    def try_all(self, program: str) -> None:
        """Run a program that says which of its lines have failed."""
        status, output = self._program(program)
        assert status == 0, output
        self.failed += re.findall(r"^\[failed\] (.*)$", output, re.M)
        self.output += output

    def _type(self, command: str) -> tuple[int, str]:
        """Status and output of a command."""
        words = command.split()
        variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
        program, *arguments = words[len(variables) :]
        if program == "elsewhere/bin/python":
            return 0, run(self.folder / "elsewhere", command.partition(' -c "')[2].removesuffix('"'))
        elsewhere = {
            "python3 -m venv elsewhere": lambda: linked(needed(self._factory), self.folder / "elsewhere"),
            "elsewhere/bin/pip install -q numpy dist/*.whl": self._install,
        }
        if command in elsewhere:
            elsewhere[command]()
            return 0, ""
        if program == "scons":
            done = self.scons(*arguments, ok=None, env={"KERNELWRIGHT_CACHE_DIR": ""})
            return done.status, done.output
        if program == "cat":
            file = self.folder / arguments[0]
            return (0, file.read_text()) if file.exists() else (1, "")
        if program == "kernelwright":
            return self._program(COMMAND.format(arguments=arguments), variables)
        assert program == "python", command
        script = SCRIPT.format(arguments=arguments, file=arguments[0]) if arguments else ""
        return self._program(script, variables)

    def _install(self) -> None:
        (wheel,) = self.folder.glob("dist/*.whl")
        install(self.folder / "elsewhere", "--no-index", wheel)

    def _program(self, code: str, variables: dict[str, str] | None = None) -> tuple[int, str]:
        """Status and output of a program that runs in a fork of a process with TVM."""
        known = {name: value for name, value in os.environ.items() if not name.startswith("KERNELWRIGHT_")}
        here = {"CUDA_VISIBLE_DEVICES": "", "PATH": f"{self.shared}/bin:{os.environ['PATH']}"}
        environment = {**known, **here, **self._more, **(variables or {})}
        done = starter("support.tvm_ready", *CALLING).run(
            READY + code, env=environment, path=[""], cwd=self.folder, merged=True
        )
        return done.returncode, done.stdout


KINDS = {
    "variables": r"[A-Z_]+=",
    "commands": r"(kernelwright|scons)\b",
    "folders": r"(kernels|stages|scratch|locks)/",
    "expressions": "",
}


def lines_of(page: Path) -> dict[str, list[str]]:
    """What stands in the column ``Kernelwright`` of a page's tables as code, by kind."""
    rows = [row.strip("| ").split(" | ") for row in page.read_text(encoding="utf-8").splitlines() if row[:2] == "| "]
    cells = [row[1] for row in rows if row[1] != "Kernelwright"]
    assert all("`" in cell or cell.startswith("none") for cell in cells)
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for code in dict.fromkeys(code for cell in cells for code in re.findall(r"`([^`]+)`", cell)):
        kind = next(kind for kind, pattern in KINDS.items() if re.match(pattern, code))
        found[kind].append(code.removeprefix("@"))
    return found


TRY = """
import sys, traceback
names = {{"__name__": "__main__"}}
exec({before!r}, names)
for line in {lines!r}:
    try:
        eval(line, names)
    except BaseException:
        traceback.print_exc()
        print("[failed]", line, flush=True)
"""

LAST = ("kw.enable_cache()", "kw.disable_cache()", "kw.clear_cache()", "kernelwright cache clear")
"""What leaves nothing for other lines to look at."""


TABLES = [ROOT / f"docs/coming-from-{name}.md" for name in ("tilelang", "tilus")]


def test_each_line_of_the_tables_works(cpu_project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    """In one session: commands that both pages have are run once."""
    found, session = [lines_of(page) for page in TABLES], Session(cpu_project.folder, tmp_path_factory)
    lines = {kind: list(dict.fromkeys(line for of_page in found for line in of_page[kind])) for kind in KINDS}
    Options.of_environment(dict(line.split("=", 1) for line in lines["variables"]))
    for late in (False, True):
        for page, of_page in zip(TABLES, found, strict=True):
            (before,) = (block.text for block in blocks(page))
            expressions = [line for line in of_page["expressions"] if (line in LAST) == late]
            if not late or page == TABLES[0]:  # the other one has no more of the last lines, and compiles all again
                session.try_all(TRY.format(before=before, lines=expressions))
            else:
                assert {*expressions} <= {*found[0]["expressions"]}
        for command in (line for line in lines["commands"] if (line in LAST) == late):
            session.command(command, "")
        if not late:
            cache = cpu_project.folder / ".cache/kernelwright"
            session.failed += [line for line in lines["folders"] if not any(cache.glob(re.sub("<.*?>", "*", line)))]
    assert session.failed == [], session.output


def test_the_first_session_works_as_it_is_printed(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    session = Session(tmp_path, tmp_path_factory)
    for block in blocks(PAGE):
        session.follow(block)
    session.end_conversation()
    assert session.failed == [], session.output
