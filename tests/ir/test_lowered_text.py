"""The text form of lowered plans: text in, plan out, and back."""

from __future__ import annotations

import pytest

from ir import IRError, kept_states, parse, parse_plan, parse_sharding, show_plan
from ir.analysis import Site, flatten

PRODUCT = """
@ mesh x=2,y=4
%0: f32[8,16] = input "x" batch
%1: f32[16,32] = input "w" parameter
  @ %0 [x,-]
  @ %1 [y,-]
  @ operand 0: [x,-] slice(y) to 1 [x,y] for "x"
%2: f32[8,32] = dot_general %0 %1 {ATTRS}  # mlp.py:12
  @ runs x=l0,y=c0: [x,y] [y,-] -> [x,-]+sum(y)
  @ result 0: [x,-]+sum(y) all-reduce(y) sum [x,-] for "dot_general mlp.py:12"
  @ return 0: [x,-] all-gather(x) from 0 [-,-] for "result 0"
  @ return 0: [-,-]
return %2
""".lstrip().replace(
    "ATTRS", "dimension_numbers=(((1,), (0,)), ((), ())), preferred_element_type=None"
)

LOOP = """
@ mesh x=2
%0: f32[4,8] = input "w" parameter
%1: f32[8] = input "h" argument
  @ %0 [-,-]
  @ %1 [-]
  @ operand 0: [-] slice(x) to 0 [x] for "h"
%2: f32[8] = scan %1 %0 {jaxpr="body 0", length=4, num_carry=1, num_consts=0, reverse=False}
  body 0 {
    %0: f32[8] = input "in0" body
    %1: f32[8] = input "in1" body
      @ %0 [x]
      @ %1 [-]
      @ operand 1: [-] slice(x) to 0 [x] for "scan@0.in1"
    %2: f32[8] = mul %0 %1
      @ runs x=d0: [x] [x] -> [x]
    return %2
  }
  @ %2 [x]
  @ return 0: [x]
return %2
""".lstrip()

REGION = """
%0: f32[8] = input "x" argument
%1: f32[8] = remat %0 {jaxpr="body 0"}
  body 0 {
    %0: f32[8] = input "in0" body
    %1: f32[8] = sin %0
    return %1
  }
return %1
""".lstrip()


def test_a_product_reads_as_it_runs() -> None:
    plan = parse_plan(PRODUCT)
    assert str(plan.mesh) == "x=2,y=4"
    assert [str(state) for state in plan.states] == ["[x,-]", "[y,-]", "[x,-]"]
    assert [r.passage.site for r in plan.reshards] == [
        Site((0,), "operand", 0), Site((0,), "result", 0), Site((), "return", 0),
    ]  # fmt: skip
    kinds = [step.collective for r in plan.reshards for step in r.change.steps]
    assert kinds == [None, "all-reduce", "all-gather"]
    assert show_plan(plan) == PRODUCT


def test_a_body_reads_as_it_runs() -> None:
    plan = parse_plan(LOOP)
    inner, entering = plan.reshards
    assert entering.passage.site == Site((0,), "operand", 0)
    assert entering.weight == 1.0
    assert inner.passage.site == Site((0, 0, 0), "operand", 1)
    assert inner.weight == 4.0
    assert show_plan(plan) == LOOP


def test_of_several_names_of_a_value_the_outermost_gives_its_state() -> None:
    """A region without ports reads what lies outside, in the state that it has there."""
    flat = flatten(parse(REGION))
    outside, inside = parse_sharding("[x]"), parse_sharding("[-]+sum(x)")
    assert kept_states(flat, {((), 0): outside, ((0, 0), 0): inside})[0] == outside
    assert kept_states(flat, {((0, 0), 0): inside})[0] == inside


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("@ mesh x=2,y=4\n", "", "begins with its mesh"),
        ("operand 0", "operand 7", "line 6: the program has no such operand"),
        (" slice(y) to 1 [x,y]", "", "line 6: .* at least one step"),
        ("slice(y)", "slide(y)", "line 6: 'slide' is not one of"),
        ("[x,y] [y,-] ->", "[x,y] ->", "line 8: dot_general has 2 operands, found 1"),
        ("x=l0", "z=l0", "line 8: .* other axes"),
        ("runs", "walks", "line 8: found 'walks"),
        (' for "x"', "", "line 6: a change of state ends with what it is for"),
        ("[x,-]+sum(y)", "[x,x]", "line 8: a mesh axis is used twice"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(old: str, new: str, error: str) -> None:
    with pytest.raises(IRError, match=error):
        parse_plan(PRODUCT.replace(old, new))
