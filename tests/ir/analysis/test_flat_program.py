# pyright: basic
"""A graph laid out flat: places, times, weights and ports of every kind of region."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ir import IRError, Literal
from ir.analysis.flat_program import FlatProgram
from ir.analysis.flatten import flatten
from ir.regions import ASSUMED_ITERATIONS, REGIONS
from ir.trace import trace
from tests.planner.programs import CAPTURED, CASES, A, W, X, struct


def flat(fn, *args) -> FlatProgram:
    return flatten(trace(fn, *args).graph)


def named(name: str) -> FlatProgram:
    return flat(CASES[name].fn, *CASES[name].args)


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_program_is_laid_out_in_order(name: str) -> None:
    program = named(name)
    times = [op.time for op in program.ops]
    assert times == sorted(set(times))
    assert max(times, default=-1) < program.clock
    made = set(program.inputs) | {v for v, x in enumerate(program.values) if x.kind == "port"}
    for op in program.ops:
        assert all(isinstance(v, Literal) or v in made for v in op.inputs)
        assert op.node.op not in REGIONS
        assert op.weight >= 0
        made.update(op.outputs)
    assert all(isinstance(v, Literal) or v in made for v in program.outputs)
    assert len({op.place for op in program.ops}) == len(program.ops)


@pytest.mark.parametrize("name", ["scanned", "while_loop"])
def test_every_place_has_the_line_of_its_node(name: str) -> None:
    program = named(name)
    (region,) = (r for r in program.regions if len(r.place) == 1)
    node = program.graph.nodes[region.place[0]]
    assert node.source
    assert program.line(region.place) == program.line((*region.place, 0)) == node.source
    for op in program.ops:
        assert program.line(op.place) == op.node.source


@pytest.mark.parametrize("name", sorted(CASES))
def test_links_join_values_of_one_shape(name: str) -> None:
    program = named(name)
    for link in program.links:
        source, target = program.values[link.source].type, program.values[link.target].type
        assert source.shape[link.lift :] == target.shape
        assert source.dtype == target.dtype


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_value_of_every_body_has_its_place(name: str) -> None:
    graph = trace(CASES[name].fn, *CASES[name].args).graph
    program = flatten(graph)
    for number, type_ in enumerate(graph.types):
        v = program.names.get(((), number))
        assert v is None or program.values[v].type == type_
    assert set(program.names.values()) <= set(range(len(program.values)))


def test_scan_has_ports_for_constants_carries_and_slices() -> None:
    program = named("scanned")  # (w, x) -> scan over three slices, carry and sums leave
    entering = [link for link in program.links if program.values[link.target].region_end >= 0]
    assert sorted((link.lift, link.weight) for link in entering) == [
        (0, 1.0), (0, 1.0), (0, 3.0), (0, 3.0), (1, 1.0)
    ]  # fmt: skip
    assert {op.weight for op in program.ops if len(op.place) == 3} == {3.0}
    ((outer, inner),) = program.stacked.items()
    assert program.values[outer].type.shape == (3, *program.values[inner].type.shape)
    carry, sums = program.outputs
    assert sums == outer
    assert isinstance(carry, int)
    assert program.values[carry].type.shape == (8, 16)


def test_only_ops_of_which_nothing_is_known_are_warned_of() -> None:
    def spectrum(x):
        return jnp.abs(jnp.fft.rfft(x)), jnp.linalg.cholesky(x)

    def called(x):
        return jax.pure_callback(np.tanh, x, x)

    assert not flat(spectrum, struct(4, 16, 16)).warnings
    (warning,) = flat(called, struct(4, 16, 16)).warnings
    assert "'pure_callback'" in warning
    assert "whole on every device" in warning


def test_weights_multiply() -> None:
    program = named("nested")
    weights = {len(op.place): op.weight for op in program.ops}
    assert weights[3] == 3.0  # outer scan
    assert weights[5] in (1.5, 6.0)  # a branch of two, and a scan of two, inside it
    assert {op.weight for op in program.ops if len(op.place) == 5} == {1.5, 6.0}


def test_loop_without_iterations_costs_nothing() -> None:
    program = named("scanned_over_nothing")
    assert {op.weight for op in program.ops if len(op.place) == 3} == {0.0}


def test_while_is_priced_as_some_iterations_and_says_so() -> None:
    program = named("while_loop")
    assert {op.weight for op in program.ops} == {float(ASSUMED_ITERATIONS)}
    assert any(f"priced as {ASSUMED_ITERATIONS} iterations" in w for w in program.warnings)
    assert len(program.forced) == 1
    assert program.values[next(iter(program.forced))].type.dtype == "bool"


def test_the_index_of_a_branch_is_whole_everywhere() -> None:
    program = named("branches")
    (index,) = program.forced
    assert program.values[index].type.shape == ()
    branches = {op.place[:2] for op in program.ops if len(op.place) == 3}
    assert len(branches) == 3
    assert {round(op.weight, 9) for op in program.ops if len(op.place) == 3} == {round(1 / 3, 9)}


def test_recomputed_regions_have_no_ports() -> None:
    def fn(w, x):
        return jax.checkpoint(lambda w: jnp.tanh(x @ w))(w)

    program = flat(fn, W, A)
    assert [len(op.place) for op in program.ops] == [3, 3]
    assert not program.links


def test_values_captured_by_a_body_are_ports() -> None:
    def fn(x):
        return lax.fori_loop(0, 2, lambda _, c: c + CAPTURED, x)

    program = flat(fn, X)
    ports = [v for v in program.values if v.kind == "port"]
    assert any(v.type.shape == (8, 16) for v in ports)
    assert {op.weight for op in program.ops if len(op.place) > 1} == {2.0}


def test_unknown_primitives_are_named_with_their_line() -> None:
    (warning,) = named("called_back").warnings
    assert warning.startswith("'pure_callback' (programs.py:")


def test_region_of_another_form() -> None:
    graph = trace(CASES["scanned"].fn, *CASES["scanned"].args).graph
    node = next(n for n in graph.nodes if n.op == "scan")
    attrs = tuple((k, "three" if k == "length" else v) for k, v in node.attrs)
    broken = type(node)(node.op, node.inputs, node.outputs, attrs, node.bodies, node.source)
    nodes = tuple(broken if n is node else n for n in graph.nodes)
    with pytest.raises(IRError, match="'length' should be a number, found 'three'"):
        flatten(type(graph)(graph.inputs, nodes, graph.outputs))
