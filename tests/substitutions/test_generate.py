"""The search for rules: sound, deterministic, resumed after an interruption."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from substitutions import Generated, RuleError, generate
from substitutions.generate.classes import Classes, Orbit
from substitutions.generate.derive import Rewriter
from substitutions.generate.prune import instance_of
from substitutions.generate.sets import OP_SETS, OpSet
from substitutions.generate.terms import Enumeration
from substitutions.generate.values import (
    Renamings,
    Value,
    applied,
    exchanged,
    fingerprints,
    input_values,
)
from substitutions.graph import Op, Ref
from substitutions.ops import OPS
from substitutions.term import Term
from substitutions.text import parse_term, rule_of_text
from substitutions.verify.judge import refuted_again
from tests.helpers_exhaustive import usual


@cache
def found_in(name: str) -> Generated:
    return generate(name, 2)


@pytest.mark.parametrize("name", usual(OP_SETS, ("plain", "parallel", "lookups")))
def test_what_is_found_holds(name: str) -> None:
    found = found_in(name)
    ranks = OP_SETS[name].ranks
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
    texts = {(rule.left, rule.right) for rule in found_in("lookups").rules}
    assert ("gather(relu(x), i)", "relu(gather(x, i))") in texts


class StopError(Exception):
    """Stands for an interruption."""


def test_an_interrupted_search_goes_on_and_finds_the_same(tmp_path: Path) -> None:
    whole = found_in("lookups")
    journal = tmp_path / "found.journal"
    generate("lookups", 2, journal)
    lines = journal.read_text("utf-8").splitlines()
    torn = "\n".join(lines[: len(lines) // 2]) + '\n["add(x'
    journal.write_text(torn, "utf-8")
    again = generate("lookups", 2, journal)
    assert again.rules == whole.rules
    assert again.counts == whole.counts
    assert journal.read_text("utf-8").splitlines() == lines


def test_an_interruption_leaves_whole_lines(tmp_path: Path) -> None:
    def stop(_: str) -> None:
        raise StopError

    journal = tmp_path / "found.journal"
    with pytest.raises(StopError):
        generate("lookups", 2, journal, stop)
    assert generate("lookups", 2, journal).rules == found_in("lookups").rules


@pytest.mark.parametrize("text", ["", "something else\n", "meshwright-rules plain 2\n7\n8\n"])
def test_a_foreign_journal_is_refused(text: str, tmp_path: Path) -> None:
    journal = tmp_path / "found.journal"
    journal.write_text(text, "utf-8")
    if text:
        with pytest.raises(RuleError, match=r"found\.journal"):
            generate("plain", 1, journal)
    else:
        assert generate("plain", 1, journal).rules


def test_a_journal_that_cannot_be_read_or_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "binary.journal").write_bytes(b"\xff\xfe\0")
    (tmp_path / "folder.journal").mkdir()
    for name in ("binary.journal", "folder.journal", "none/found.journal"):
        with pytest.raises(RuleError, match=r"\.journal"):
            generate("plain", 1, tmp_path / name)


@pytest.mark.parametrize(("name", "ops"), [("plain", 0), ("plain", 5), ("fancy", 2)])
def test_wrong_use_is_one_error(name: str, ops: int) -> None:
    with pytest.raises(RuleError):
        generate(name, ops)


def test_a_row_of_a_value_is_the_value_of_the_renamed_term() -> None:
    chosen = OP_SETS["lookups"]
    renamings = Renamings(chosen)
    values = input_values(chosen, renamings)
    op = Op("gather", (Ref(-1, 0, "x"), Ref(-1, 0, "i")))
    (one,) = applied(op, [values["x"], values["i"]], parallel=False)
    order = renamings.order(parse_term("gather(x, i)"))
    prints = fingerprints(one, renamings, order)
    for i in range(len(renamings.all)):
        other = renamings.renamed(parse_term("gather(x, i)"), i)
        named = [values[arg.name] for arg in other.args]
        (direct,) = applied(op, named, parallel=False)
        assert (direct.data == exchanged(one, renamings, i).data).all()
        held = fingerprints(direct, renamings, renamings.order(other))
        assert held[0] == prints[i]
        assert renamings.ordered(renamings.order(other)) == (other == parse_term("gather(x, i)"))


def test_rewriting_derives_instances_and_chains_and_nothing_else() -> None:
    classes = Classes(Renamings(OP_SETS["plain"]))
    rewriter = Rewriter(classes)
    rewriter.add(parse_term("add(y, x)"), parse_term("add(x, y)"), "><")
    rewriter.add(parse_term("relu(relu(x))"), parse_term("relu(x)"), "><")
    rewriter.add(parse_term("transpose(x)"), parse_term("exp(x)"), "")
    cases = {
        ("add(mul(x, y), z)", "add(z, mul(x, y))"): True,
        ("add(relu(relu(x)), y)", "add(y, relu(x))"): True,
        ("transpose(add(x, y))", "exp(add(x, y))"): True,
        ("relu(transpose(x))", "relu(exp(x))"): False,  # a condition is not carried inside
        ("add(x, y)", "add(x, z)"): False,
        ("mul(x, y)", "mul(y, x)"): False,
    }
    for (left, right), expected in cases.items():
        assert rewriter.equal(parse_term(left), parse_term(right), None) == expected, left


def test_instances_are_recognised() -> None:
    general = (parse_term("add(x, y)"), parse_term("add(y, x)"))
    special = (parse_term("add(relu(z), z)"), parse_term("add(z, relu(z))"))
    assert instance_of(general, special)
    assert not instance_of(special, general)


def all_terms(chosen: OpSet, values: Mapping[str, Value]) -> Iterator[tuple[Term, Value]]:
    """Terms of one and two ops over all operands, nothing left out."""
    levels = [[(Term("", name), value) for name, value in values.items()]]
    for size in (1, 2):
        below = [item for level in levels for item in level]
        fresh: list[tuple[Term, Value]] = []
        for kind, params in chosen.ops:
            arity = OPS[kind].operands[0]
            op = Op(kind, tuple(Ref(-1, 0, str(i)) for i in range(arity)), params)
            for args in itertools.product(below, repeat=arity):
                if sum(bool(term.kind) for term, _ in args) != size - 1:
                    continue
                found = applied(op, [value for _, value in args], parallel=chosen.parallel)
                written = tuple((key, str(value)) for key, value in params)
                terms = tuple(term for term, _ in args)
                fresh += [
                    (Term(kind, "", written, terms, part), value)
                    for part, value in enumerate(found)
                ]
        yield from fresh
        levels.append(fresh)


@pytest.mark.parametrize("name", usual(["lookups", "conv"], ["lookups"]))
def test_no_value_is_left_out(name: str) -> None:
    """Terms over one of each class, inputs in their own order, have all values up to names."""
    chosen = OP_SETS[name]
    classes = Classes(Renamings(chosen))
    made = Enumeration(chosen, classes)
    values = input_values(chosen, classes.renamings)

    def add(pairs: Iterable[tuple[Term, Value]], size: int) -> None:
        fresh: list[Orbit] = []
        for term, value in pairs:
            orbit = classes.new_orbit(term, size, value)
            if not any(classes.alike(orbit.prints)):
                classes.add(orbit)
                fresh.append(orbit)
        made.close(fresh)

    add([(Term("", given), value) for given, value in values.items()], 0)
    for size in (1, 2):
        add(list(made.terms()), size)
    known = {found for orbit in classes.orbits for found in orbit.prints}
    for term, value in all_terms(chosen, values):
        order = classes.renamings.order(term)
        assert fingerprints(value, classes.renamings, order)[0] in known, term
