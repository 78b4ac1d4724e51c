"""The search for rules: sound, deterministic, resumed after an interruption."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from substitutions import Generated, RuleError, generate
from substitutions.generate.prune import instance_of
from substitutions.generate.terms import OP_SETS
from substitutions.text import parse_term, rule_of_text
from substitutions.verify.judge import refuted_again


@cache
def found_in(name: str) -> Generated:
    return generate(name, 2)


@pytest.mark.parametrize("name", OP_SETS)
def test_what_is_found_holds(name: str) -> None:
    found = found_in(name)
    ranks = {input_: rank for input_, rank, _ in OP_SETS[name].inputs}
    assert found.rules
    for item in found.rules[::6]:
        rule = rule_of_text("", item.left, item.right, ranks, parallel=item.parallel)
        if item.verdict != "fixed-degree":
            assert not refuted_again(rule, 8), rule


def test_known_rules_are_found() -> None:
    found = {(rule.left, rule.right) for rule in found_in("plain").rules}
    assert ("add(y, x)", "add(x, y)") in found
    assert ("matmul[0](matmul[0](x, y), z)", "matmul[0](x, matmul[0](y, z))") in found
    texts = {(rule.left, rule.right) for rule in found_in("parallel").rules}
    assert ("combine[1, 2](partition[1, 2](x))", "x") in texts


class StopError(Exception):
    """Stands for an interruption."""


def test_an_interrupted_search_goes_on_and_finds_the_same(tmp_path: Path) -> None:
    whole = found_in("parallel")
    journal = tmp_path / "found.journal"
    generate("parallel", 2, journal)
    lines = journal.read_text("utf-8").splitlines()
    torn = "\n".join(lines[: len(lines) // 2]) + '\n["add(x'
    journal.write_text(torn, "utf-8")
    again = generate("parallel", 2, journal)
    assert again.rules == whole.rules
    assert again.counts == whole.counts
    assert journal.read_text("utf-8").splitlines() == lines


def test_an_interruption_leaves_whole_lines(tmp_path: Path) -> None:
    def stop(_: str) -> None:
        raise StopError

    journal = tmp_path / "found.journal"
    with pytest.raises(StopError):
        generate("parallel", 2, journal, stop)
    assert generate("parallel", 2, journal).rules == found_in("parallel").rules


@pytest.mark.parametrize("text", ["", "something else\n", "meshwright-rules plain 1\n7\n8\n"])
def test_a_foreign_journal_is_refused(text: str, tmp_path: Path) -> None:
    journal = tmp_path / "found.journal"
    journal.write_text(text, "utf-8")
    if text:
        with pytest.raises(RuleError, match=r"found\.journal"):
            generate("plain", 1, journal)
    else:
        assert generate("plain", 1, journal).rules


@pytest.mark.parametrize(("name", "ops"), [("plain", 0), ("plain", 5), ("fancy", 2)])
def test_wrong_use_is_one_error(name: str, ops: int) -> None:
    with pytest.raises(RuleError):
        generate(name, ops)


def test_instances_are_recognised() -> None:
    general = (parse_term("add(x, y)"), parse_term("add(y, x)"))
    special = (parse_term("add(relu(z), z)"), parse_term("add(z, relu(z))"))
    assert instance_of(general, special)
    assert not instance_of(special, general)
