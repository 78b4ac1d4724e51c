"""Rewrites and shardings chosen together, beside one after the other on the same prices.

    joint          the cheapest pair of an equal program and shardings for it
    rewrite first  the program that is cheapest on one device, then the best shardings for it
    shard first    the best shardings of the program as written; then the cheapest equal program
                   in which the values that the plan made are made as it made them
    as written     the best shardings of the program as written

The joint optimum is below the others: each is a restriction of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costmodel import Cluster, CollectiveModel, ComputeModel, ReshardModel
from ir import IRError, Mesh, Sharding, TensorType
from planner import PlanError
from planner.sharding.rewrite.sharded_egraph import (
    Choice,
    Item,
    Kept,
    Prices,
    Product,
    Wish,
    product_of,
)
from substitutions import Extraction, Rule, extract

from .egraph import Form, Forms
from .ops import work_of
from .saturate import rewrite_rules, saturate
from .terms import of_term

LIMIT_S = 60.0
MOST_FORMS, MOST_ROUNDS = 400, 4


@dataclass(frozen=True, slots=True)
class JointProblem:
    """A program of rule terms on tensors of known sizes, on a mesh.

    outputs: terms over the inputs, such as `matmul(relu(matmul(x, w)), v)`.
    placed: the sharding in which each input lies.
    wanted: the sharding that each output must have; None for any.
    """

    inputs: Mapping[str, TensorType]
    outputs: tuple[str, ...]
    cluster: Cluster
    mesh: Mesh
    placed: Mapping[str, Sharding]
    wanted: tuple[Sharding | None, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A program with its shardings, its time, and a bound of what was asked."""

    seconds: float
    lower_bound_s: float
    stop: str
    steps: tuple[Choice, ...]
    forms: tuple[Form, ...]  # of the steps that are not reshards, in their order

    def ops(self) -> tuple[str, ...]:
        """The ops that run, as `kind strategy -> state`, in no particular order."""
        made = (step for step in self.steps if step.item is not None)
        return tuple(
            f"{form.kind} {' '.join(r or '-' for r in step.strategy.roles)} -> {step.state}"
            for step, form in zip(made, self.forms, strict=True)
            if step.strategy is not None
        )


@dataclass(frozen=True, slots=True)
class Joint:
    """Four answers to one question, and how many equal programs there were to choose from.

    saturation: `complete`, or the limit that ended the search for equal programs.
    """

    joint: Program
    rewrite_first: Program
    shard_first: Program
    as_written: Program
    forms: int
    nodes: int
    saturation: str

    @property
    def gain(self) -> float:
        """Share of the better sequential order's time that choosing together saves."""
        best = min(self.rewrite_first.seconds, self.shard_first.seconds)
        return 1.0 - self.joint.seconds / best if best else 0.0


def choose_together(
    problem: JointProblem, rules: Sequence[Rule] | None = None, limit_s: float = LIMIT_S
) -> Joint:
    """The best program and shardings, chosen together and one after the other.

    Args:
        problem: what to compute, on which mesh.
        rules: rules of one device; all of the catalogue's by default.
        limit_s: time for each extraction.

    Raises:
        PlanError: if the program does not type, or an input has no place.
    """
    _check(problem)
    forms = Forms(dict(problem.inputs))
    roots = tuple(of_term(forms, text) for text in problem.outputs)
    written = {form for form, _ in forms}
    done = saturate(forms, rewrite_rules() if rules is None else rules, MOST_ROUNDS, MOST_FORMS)
    written = frozenset(_now(forms, form) for form in written)
    wish = Wish(tuple(forms.find(r) for r in roots), problem.wanted)
    prices = _prices(problem, problem.mesh)

    useful = written | _no_joins_of_own_parts(forms)

    def best(only: frozenset[Form], kept: Kept | None = None) -> Program:
        return _best(*product(forms, prices, problem.placed, wish, only, kept), limit_s)

    everything, names = product(forms, prices, problem.placed, wish, useful)
    as_written = best(written)
    alone = _cheapest_alone(problem, forms, wish, useful, limit_s)
    return Joint(
        _best(everything, names, limit_s), best(alone),
        best(useful, _made(as_written)), as_written,
        len(forms), len(everything.graph.nodes), done.stop,
    )  # fmt: skip


def _check(problem: JointProblem) -> None:
    for name, type_ in problem.inputs.items():
        state = problem.placed.get(name)
        if state is None:
            raise PlanError(
                f"input {name} has no place", kind="joint", where="placed",
                remedy="give every input the sharding in which it lies",
            )  # fmt: skip
        try:
            state.local_shape(type_.shape, problem.mesh)
        except IRError as error:
            raise PlanError(str(error), kind="joint", where=f"placed: {name}", remedy="") from None
    if len(problem.wanted) != len(problem.outputs):
        raise PlanError(
            f"{len(problem.wanted)} shardings for {len(problem.outputs)} outputs",
            kind="joint", where="wanted", remedy="give one for each output, or None",
        )  # fmt: skip


def _now(forms: Forms, form: Form) -> Form:
    return Form(form.kind, form.params, tuple(map(forms.find, form.args)), form.name)


def _no_joins_of_own_parts(forms: Forms) -> frozenset[Form]:
    """All forms but joins of values that are parts of the join: these only close cycles."""
    parts = {(c, forms.find(form.args[0])) for form, c in forms if form.kind == "slice"}
    return frozenset(
        form
        for form, c in forms
        if form.kind != "concat" or not all((forms.find(a), c) in parts for a in form.args)
    )


def _prices(problem: JointProblem, mesh: Mesh) -> Prices:
    collectives = CollectiveModel(problem.cluster)
    reshard = ReshardModel(problem.cluster, mesh, collectives)
    return Prices(mesh, ComputeModel(problem.cluster), reshard)


def product(
    forms: Forms, prices: Prices, placed: Mapping[str, Sharding], wish: Wish,
    only: frozenset[Form] | None = None, kept: Kept | None = None,
) -> tuple[Product, Sequence[Form]]:  # fmt: skip
    """The product of equal forms and shardings, and the forms that its items are named by.

    Args:
        forms: equal programs.
        prices: of the mesh.
        placed: the sharding in which each input lies.
        wish: what must come out.
        only: forms that may be used; None for all.
        kept: shardings in which the values of these classes may be made; others are free.
    """
    items: list[Item] = []
    names: list[Form] = []
    for form, value in forms:
        if only is not None and form not in only:
            continue
        if form.kind:
            args = tuple(forms.find(c) for c in form.args)
            work = work_of(form, tuple(forms.types[c] for c in args), forms.types[value])
            items.append(Item(len(names), value, tuple(enumerate(args)), work))
        else:
            items.append(Item(len(names), value, placed=placed[form.name]))
        names.append(form)
    asked = Wish(tuple(forms.find(v) for v in wish.values), wish.states)
    return product_of(items, forms.types, prices, asked, kept), names


def _best(found: Product, names: Sequence[Form], limit_s: float) -> Program:
    best: Extraction | None = extract(found.graph, "ilp", limit_s)
    if best is None or best.stop == "none":
        raise PlanError(
            "no way to compute the program as wanted", kind="joint", where="wanted", remedy=""
        )
    steps = tuple(c for i in best.chosen if (c := found.choices[i]) is not None)
    used = tuple(names[step.item.name] for step in steps if step.item is not None)
    return Program(best.cost, best.lower_bound, best.stop, steps, used)


def _cheapest_alone(
    problem: JointProblem, forms: Forms, wish: Wish, useful: frozenset[Form], limit_s: float
) -> frozenset[Form]:
    """The forms of the program that is cheapest on one device."""
    mesh = Mesh(tuple((name, 1) for name in problem.mesh.names))
    whole = {name: Sharding(((),) * len(t.shape)) for name, t in problem.inputs.items()}
    anyhow = Wish(wish.values, (None,) * len(wish.values))
    alone = _best(*product(forms, _prices(problem, mesh), whole, anyhow, useful), limit_s)
    return frozenset(alone.forms)


def _made(plan: Program) -> Kept:
    """The shardings in which a plan makes its values."""
    found: dict[int, frozenset[Sharding]] = {}
    for step in plan.steps:
        if step.item is not None:
            found[step.value] = found.get(step.value, frozenset()) | {step.state}
    return found
