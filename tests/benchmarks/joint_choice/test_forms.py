# pyright: basic
"""Programs that the catalogue makes equal compute the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.joint_choice.egraph import Form, Forms
from benchmarks.joint_choice.saturate import FAMILIES, rewrite_rules, saturate
from benchmarks.joint_choice.shapes import KINDS
from benchmarks.joint_choice.terms import of_term
from ir import TensorType
from substitutions import CATALOGUE, RuleError


def f(*shape: int) -> TensorType:
    return TensorType(shape, "float64")


INPUTS = {
    "x": f(4, 6), "y": f(4, 6), "w": f(6, 5), "v": f(6, 5), "u": f(6, 2), "a": f(2, 5),
    "z": f(5, 3), "g": f(5), "r": f(4), "s": f(), "b": f(2, 3, 4), "c": f(2, 4, 5),
    "d": f(2, 5, 3), "i": TensorType((7, 1), "int64"), "j": TensorType((2, 1), "int64"),
}  # fmt: skip
PROGRAMS = {
    "low rank": ("add(matmul(x, w), matmul(matmul(x, u), a))",),
    "chain": ("matmul(matmul(x, w), z)",),
    "projections": ("matmul(x, w)", "matmul(x, v)", "matmul(x, u)"),
    "gate": ("mul(relu(matmul(x, w)), matmul(x, v))",),
    "rows": ("matmul(x, w)", "matmul(y, w)"),
    "lookups": ("matmul(gather(x, i), w)", "gather(x, j)"),
    "gain": ("mul(matmul(x, w), along[1](g, matmul(x, w)))",),
    "norm": ("matmul(mul(x, along[0](r, x)), w)",),
    "scales": ("matmul(scale(x, s), w)", "add(scale(x, s), scale(y, s))"),
    "layout": ("transpose(matmul(x, w))", "sum[1](transpose(x))", "relu(transpose(x))"),
    "sums": ("sum[0](add(x, y))", "sum[1](mul(x, expand[1](r, x)))"),
    "split": ("matmul(concat[1](x, y), concat[0](w, v))",),
    "batch": ("batch-matmul(batch-matmul(b, c), d)",),
}


def numbers() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    found: dict[str, np.ndarray] = {}
    found |= {name: np.asarray(rng.normal(size=t.shape)) for name, t in INPUTS.items()}
    for name in "ij":
        found[name] = rng.integers(0, 4, size=INPUTS[name].shape)
    return found


def value(form: Form, args: list[np.ndarray], given: dict[str, np.ndarray]) -> np.ndarray:
    """What a form computes, in NumPy."""
    if not form.kind:
        return given[form.name]
    p: dict[str, Any] = dict(form.params)
    plain = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
        "neg": np.negative, "exp": np.exp, "tanh": np.tanh, "scale": np.multiply,
        "matmul": np.matmul, "batch-matmul": np.matmul, "transpose": np.transpose,
        "relu": lambda x: np.maximum(x, 0), "rsqrt": lambda x: 1 / np.sqrt(x),
        "concat": lambda *a: np.concatenate(a, p["axis"]),
        "sum": lambda x: x.sum(p["axis"]), "max": lambda x: x.max(p["axis"]),
        "slice": lambda x: np.take(x, range(p["start"], p["stop"]), p["axis"]),
        "gather": lambda x, i: x[i[:, 0]],
        "expand": lambda x: np.broadcast_to(np.expand_dims(x, p["axis"]), p["shape"]),
        "along": lambda x: np.broadcast_to(
            x.reshape([-1 if k == p["axis"] else 1 for k in range(len(p["shape"]))]), p["shape"]
        ),
    }  # fmt: skip
    return plain[form.kind](*args)


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_forms_of_a_class_have_one_value(name: str) -> None:
    forms, given = Forms(INPUTS), numbers()
    roots = [of_term(forms, text) for text in PROGRAMS[name]]
    before = len(forms)
    done = saturate(forms, rewrite_rules(), most=300)
    assert done.rounds > 0
    assert len(forms) > before
    held: dict[int, np.ndarray] = {}
    left = list(forms)
    while left:
        later = [(form, c) for form, c in left if not all(forms.find(a) in held for a in form.args)]
        assert len(later) < len(left), "a class that nothing builds"
        for form, c in left:
            if (form, c) in later:
                continue
            found = value(form, [held[forms.find(a)] for a in form.args], given)
            assert found.shape == forms.types[c].shape
            np.testing.assert_allclose(held.setdefault(c, found), found, rtol=1e-9, atol=1e-9)
        left = later
    assert all(forms.find(root) in held for root in roots)


def test_the_expected_forms_are_found() -> None:
    forms = Forms(INPUTS)
    root = of_term(forms, PROGRAMS["low rank"][0])
    merged = of_term(forms, "matmul(x, add(w, matmul(u, a)))")
    assert forms.find(root) != forms.find(merged)
    saturate(forms, rewrite_rules())
    assert forms.find(root) == forms.find(merged)


def test_limits_end_the_search() -> None:
    forms = Forms(INPUTS)
    of_term(forms, PROGRAMS["low rank"][0])
    assert saturate(forms, rewrite_rules(), most=20).stop == "forms"
    assert len(forms) < 60
    forms = Forms(INPUTS)
    of_term(forms, PROGRAMS["low rank"][0])
    assert saturate(forms, rewrite_rules(), rounds=1).stop == "rounds"


def test_the_same_program_gives_the_same_forms() -> None:
    found = []
    for _ in range(2):
        forms = Forms(INPUTS)
        of_term(forms, PROGRAMS["gate"][0])
        saturate(forms, rewrite_rules())
        found.append(list(forms))
    assert found[0] == found[1]


def test_rules_come_from_rows_of_one_device_and_know_their_inputs() -> None:
    plain = [row for family in FAMILIES for row in CATALOGUE[family]]
    assert not any(row.parallel for row in plain)
    for rule in rewrite_rules():
        assert {op.kind for op in rule.source} <= set(KINDS)


@pytest.mark.parametrize(
    "text", ["matmul(x, x)", "conv(x, w)", "add(x, q)", "relu(", "gather(x, x)", "scale(x, w)"]
)
def test_what_does_not_type_is_one_error(text: str) -> None:
    with pytest.raises(RuleError):
        of_term(Forms(INPUTS), text)
