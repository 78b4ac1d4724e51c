"""The records of the ops of rules: complete, and the only place that names most of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from substitutions.ops import CONSTANTS, OPS, PARAMETERS
from tests.substitutions import jax_meaning

PASSES = Path(__file__).parents[2] / "substitutions"
# Names that also mean something else: parameters, primitives of JAX, functions, and tables that
# read files of others or say which ops a search uses.
ELSEWHERE = ("ops", "published", "catalogue", "axioms", "generate/sets.py")


@pytest.mark.parametrize("name", OPS)
def test_a_record_is_complete(name: str) -> None:
    op = OPS[name]
    assert op.name == name
    assert (op.compute is None) == (name in CONSTANTS) == (op.operands == (0, 0))
    assert set(op.needed) <= PARAMETERS.keys()
    assert all(PARAMETERS[key].default is not None for key in op.unwritten)
    assert 0 <= op.like < max(op.operands[0], 1)


@pytest.mark.parametrize("name", sorted(OPS.keys() - CONSTANTS))
def test_an_op_has_a_meaning_in_jax(name: str) -> None:
    assert name in jax_meaning.OPS


@pytest.mark.parametrize("name", ["along", "conv", "combine", "enlarge", "linear", "matmul"])
def test_no_pass_knows_an_op_by_name(name: str) -> None:
    """Of names that mean nothing else."""
    found = [
        file.name
        for file in sorted(PASSES.rglob("*.py"))
        if not file.relative_to(PASSES).as_posix().startswith(ELSEWHERE)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value == name
    ]
    assert found == []
