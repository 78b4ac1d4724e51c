# pyright: basic
"""Chosen together is never dearer than one after the other, and is the optimum of small cases."""

from __future__ import annotations

import itertools
import math
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.joint_choice import Joint, JointProblem, choose_together
from benchmarks.joint_choice.egraph import Form, Forms
from benchmarks.joint_choice.ops import _OPS, work_of
from benchmarks.joint_choice.saturate import rewrite_rules, saturate
from benchmarks.joint_choice.shapes import KINDS
from benchmarks.joint_choice.terms import of_term
from costmodel import CollectiveModel, ComputeModel, ReshardModel, parse_cluster
from ir import Mesh, Sharding, TensorType
from planner.common.errors import PlanError
from planner.sharding.rewrite.sharded_egraph import Prices

MESH = Mesh((("x", 8),))
WHOLE, ROWS, COLUMNS = Sharding(((), ())), Sharding((("x",), ())), Sharding(((), ("x",)))
PLACES = (WHOLE, ROWS, COLUMNS)


@cache
def cluster():
    return parse_cluster("8xh100")


def t(*shape: int) -> TensorType:
    return TensorType(shape, "bfloat16")


def problem(
    inputs: dict[str, TensorType], outputs: tuple[str, ...], places: tuple[Sharding, ...],
    wanted: Sharding | None = None,
) -> JointProblem:  # fmt: skip
    placed = dict(zip(inputs, itertools.cycle(places)))
    return JointProblem(
        inputs, outputs, cluster(), MESH, placed, (wanted,) * len(outputs)
    )  # fmt: skip


def in_order(found: Joint) -> None:
    for other in (found.rewrite_first, found.shard_first, found.as_written):
        assert found.joint.stop == other.stop == "optimal"
        assert found.joint.seconds <= other.seconds * (1 + 1e-9)
    assert found.shard_first.seconds <= found.as_written.seconds * (1 + 1e-9)
    assert found.joint.lower_bound_s == pytest.approx(found.joint.seconds)


PROGRAMS = (
    ("matmul(matmul(x, u), v)",),
    ("matmul(x, add(w, matmul(u, v)))",),
    ("add(matmul(x, w), matmul(x, z))",),
    ("relu(transpose(matmul(x, w)))",),
    ("matmul(x, w)", "matmul(x, z)"),
)


@settings(max_examples=5, deadline=None)
@given(
    st.sampled_from(PROGRAMS),
    st.tuples(*[st.sampled_from((64, 512, 4096, 16384))] * 3),
    st.sampled_from((16, 512, 4096)),
    st.lists(st.sampled_from(PLACES), min_size=5, max_size=5),
    st.sampled_from((None, *PLACES)),
)
def test_together_is_never_dearer(
    outputs: tuple[str, ...], sizes: tuple[int, int, int], rank: int,
    places: list[Sharding], wanted: Sharding | None,
) -> None:  # fmt: skip
    tokens, d, _ = sizes
    inputs = {"x": t(tokens, d), "w": t(d, d), "u": t(d, rank), "v": t(rank, d), "z": t(d, d)}
    in_order(choose_together(problem(inputs, outputs, tuple(places), wanted)))


RULES = tuple(
    rule
    for rule in rewrite_rules(("products", "layouts"))
    if rule.name in ("reassociate-right", "transpose-product", "transpose-after-relu")
)


def oracle(found: JointProblem) -> float:
    """Every program that makes each value once, under every assignment of strategies."""
    forms = Forms(dict(found.inputs))
    (root,) = (of_term(forms, text) for text in found.outputs)
    saturate(forms, RULES)
    members = forms.members()
    reshard = ReshardModel(found.cluster, found.mesh, CollectiveModel(found.cluster))
    prices = Prices(found.mesh, ComputeModel(found.cluster), reshard)
    best = math.inf
    for program in _programs(forms, members, [forms.find(root)], {}):
        order = _order(forms, program, forms.find(root))
        if order is None:
            continue
        menus = [_menu(forms, prices, c, program[c]) for c in order]
        for ways in itertools.product(*menus):
            made = dict(zip(order, ways, strict=True))
            best = min(best, _seconds(forms, prices, found, program, made, forms.find(root)))
    return best


def _programs(forms, members, todo, chosen):
    todo = [c for c in todo if c not in chosen]
    if not todo:
        yield dict(chosen)
        return
    for form in members[todo[0]]:
        below = [forms.find(a) for a in form.args]
        yield from _programs(forms, members, [*todo[1:], *below], {**chosen, todo[0]: form})


def _order(forms, program, root):
    order, left = [], set(program)
    while left:
        ready = [c for c in sorted(left) if all(forms.find(a) in order for a in program[c].args)]
        if not ready:
            return None
        order += ready
        left -= set(ready)
    return order


def _menu(forms, prices, c, form):
    if not form.kind:
        return [None]
    types = tuple(forms.types[forms.find(a)] for a in form.args)
    return prices.ways_of(work_of(form, types, forms.types[c]), len(form.args))


def _seconds(forms, prices, found, program, made, root):
    states = {
        c: found.placed[program[c].name] if way is None else way[0].results[0]
        for c, way in made.items()
    }
    total, moves = 0.0, set()
    for c, way in made.items():
        if way is not None:
            total += way[1]
            for a, need in zip(program[c].args, way[0].operands, strict=False):
                moves.add((forms.find(a), need))
    wanted = found.wanted[0]
    assert wanted is not None
    moves.add((root, wanted))
    return total + sum(prices.reshard_s(forms.types[c], states[c], need) for c, need in moves)


@pytest.mark.parametrize("places", [(WHOLE, ROWS), (ROWS, COLUMNS), (COLUMNS, WHOLE)])
@pytest.mark.parametrize(
    ("inputs", "output"),
    [
        ({"x": t(4096, 512), "w": t(512, 512)}, "transpose(matmul(x, w))"),
        ({"x": t(512, 4096), "w": t(4096, 512)}, "relu(matmul(x, w))"),
        ({"x": t(8192, 512), "u": t(512, 512), "v": t(512, 512)}, "matmul(matmul(x, u), v)"),
    ],
)
def test_small_programs_match_every_assignment(
    inputs: dict[str, TensorType], output: str, places: tuple[Sharding, ...]
) -> None:
    asked = problem(inputs, (output,), places, ROWS)
    found = choose_together(asked, RULES)
    in_order(found)
    best = oracle(asked)
    once = [step.value for step in found.joint.steps if step.item is not None]
    assert found.joint.seconds <= best * (1 + 1e-9)
    if len(set(once)) == len(once):  # the product may also make a value twice
        assert found.joint.seconds == pytest.approx(best, rel=1e-9)


def test_together_beats_both_orders_where_adapters_are_merged() -> None:
    """Merging wins on one device and loses on eight; the plan for the merged program is a trap."""
    d, f, r, tokens = 3072, 24576, 64, 5120
    inputs = {
        "x": t(tokens, d), "w": t(d, f), "u": t(d, r), "v": t(r, f), "z": t(f, d),
        "a": t(f, r), "b": t(r, d),
    }  # fmt: skip
    output = "matmul(relu(matmul(x, add(w, matmul(u, v)))), add(z, matmul(a, b)))"
    placed = dict.fromkeys(inputs, WHOLE) | {"x": ROWS}
    asked = JointProblem(inputs, (output,), cluster(), MESH, placed, (ROWS,))
    found = choose_together(asked)
    in_order(found)
    assert found.gain > 0.02


def test_every_op_of_rules_has_a_node() -> None:
    assert set(_OPS) == set(KINDS)
    forms = Forms({"x": t(8, 4), "w": t(4, 8), "s": t(), "i": TensorType((3, 1), "int32")})
    for text in ("scale(x, s)", "gather(x, i)", "sum[0](x)", "concat[1](x, x)", "relu(x)"):
        c = of_term(forms, text)
        (form,) = forms.members()[c]
        types = tuple(forms.types[a] for a in form.args)
        work = work_of(Form(form.kind, form.params, form.args), types, forms.types[c])
        assert work.spec().results


def test_wrong_use_is_one_error() -> None:
    inputs = {"x": t(64, 64), "w": t(64, 60)}
    with pytest.raises(PlanError, match="no place"):
        choose_together(
            JointProblem(inputs, ("matmul(x, w)",), cluster(), MESH, {"x": ROWS}, (None,))
        )
    with pytest.raises(PlanError, match="divide"):
        choose_together(problem(inputs, ("matmul(x, w)",), (COLUMNS,)))
    with pytest.raises(PlanError, match="0 shardings for 1 outputs"):
        choose_together(
            JointProblem(
                inputs, ("matmul(x, w)",), cluster(), MESH, dict.fromkeys(inputs, WHOLE), ()
            )
        )
