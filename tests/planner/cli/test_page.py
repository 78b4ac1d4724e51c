"""The examples of `docs/command-line.md` run, in the order of the page, on the page's own file."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.planner.cli.runner import Run

PAGE = Path(__file__).resolve().parents[3] / "docs/command-line.md"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)

# They measure the machine or read files that the page does not make; each has tests of its own.
ELSEWHERE = ("profile", "rules")


def test_examples_of_the_page_run(run: Run) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    (program,) = (text for language, text in blocks if language == "python")
    Path("step.py").write_text(program, encoding="utf-8")
    lines = [line for language, text in blocks if language == "sh" for line in text.splitlines()]
    assert len(lines) > 10
    for line in lines:
        name, *words = shlex.split(line)
        assert name == "meshwright"
        if words[0] in ELSEWHERE:
            assert list(Path(__file__).parent.glob(f"test_{words[0]}*.py"))
            continue
        if "--sweep" in words:
            words += ["-j", "1"]  # a process is as dear to start as all rows are to plan
        ran = run(*words)
        assert ran.status == 0, f"{line}\n{ran.err}"
        assert ran.out
