# pyright: basic
"""One program under one plan: made, compiled, run on several arguments, held against references."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import msgspec

from ir import GROUPED, Graph, TraceError
from ir.trace import Traced, trace
from planner import NotAProgramError, PlanError, load
from planner import plan as planned_by_search
from planner.emit.jit import CompiledPlan, compile_plan

from .comparison import described, differences, judged
from .decisions import Chooser, random_mesh
from .generate import NOT_A_PROGRAM, random_program
from .kinds import KINDS
from .noisy import noise, of_own_groups
from .paddings import random_paddings
from .program import Program, function
from .references import by_jit, known_options, op_by_op, plain
from .values import VARIANTS, arguments

# Compiles in a third of the time; a share of the programs is compiled as usual.
QUICK = known_options({
    "xla_backend_optimization_level": 0,
    "xla_cpu_parallel_codegen_split_count": 1,
    "xla_cpu_use_fusion_emitters": False,
    "xla_llvm_disable_expensive_passes": True,
})  # fmt: skip
UNEVEN = (2, 3, 5, 6, 7, 9)  # sizes of padded cases, and twice and three times these
EMISSIONS = ("shard_map", "constraints")
BAD = ("wrong", "raised", "crashed")


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """A program and how it is planned.

    draw: seed of the decisions.
    told: decisions in words, instead of random ones; what is not told of is left whole.
    route: `direct` compiles decisions, `file` saves, loads and binds a plan of them, `search` asks
        `plan()`.
    usual: compiled as a user compiles it.
    wide: JAX has types of 64 bits.
    pad: seed of dimensions that are padded before; 0 for none.
    """

    program: Program
    mesh: tuple[int, ...]
    draw: int = 0
    emission: str = "shard_map"
    route: str = "direct"
    usual: bool = False
    wide: bool = False
    told: tuple[tuple[str, str], ...] = ()
    pad: int = 0


class Outcome(msgspec.Struct, frozen=True):
    """What became of a case.

    verdict: right; rounding (equal as far as rounding goes); chaotic (rounding decides what it
        computes); own groups (equal to the program whose grouped products do not multiply rows
        with matrices of other groups); compiler (it is XLA's jit of the unsharded program that is
        off); refused; no program; no choice; wrong; raised.
    """

    verdict: str
    reason: str = ""
    primitives: dict[str, int] = {}

    @property
    def is_bad(self) -> bool:
        return self.verdict in BAD


def random_case(seed: int, number: int) -> Case:
    """Case `number` of a run; the same for the same seed."""
    rng = random.Random(f"{seed}/{number}")
    mesh = random_mesh(rng)
    wide = rng.random() < 0.08
    with bits(wide):
        program = random_program(rng, [n for n in mesh if n > 1], wide=wide)
    case = Case(
        program, mesh, rng.randrange(10**6),
        "constraints" if rng.random() < 0.25 else "shard_map",
        rng.choices(("direct", "file", "search"), (0.84, 0.13, 0.03))[0],
        rng.random() < 0.05, wide,
    )  # fmt: skip
    return msgspec.json.decode(msgspec.json.encode(case), type=Case)  # as it would be read


def padded_case(seed: int, number: int) -> Case:
    """Case `number` of a run with padded dimensions, on sizes of which most do not divide."""
    rng = random.Random(f"padded/{seed}/{number}")
    mesh = random_mesh(rng)
    program = random_program(rng, [*UNEVEN, *(n for n in mesh if n > 1)])
    draw, pad = rng.randrange(10**6), rng.randrange(1, 10**6)
    case = Case(program, mesh, draw, pad=pad)
    return msgspec.json.decode(msgspec.json.encode(case), type=Case)


def bits(wide: bool) -> AbstractContextManager[Any]:
    """JAX with or without types of 64 bits."""
    return jax.enable_x64(wide)


def run(case: Case) -> Outcome:
    """Plans and runs a case."""
    with bits(case.wide):
        return _Run(case).outcome()


def unsharded(seed: int, number: int) -> None:
    """Runs the program of a case as it is written, on one device."""
    case = random_case(seed, number)
    with bits(case.wide):
        whole = _Run(case)
        reference = by_jit(whole.fn, whole.options, whole.structs)
        for given in whole.given():
            reference(*given)


def told(case: Case) -> Case:
    """The case with its decisions in words."""
    if case.told or case.route == "search":
        return case
    with bits(case.wide):
        structs = [a.type.struct() for a in case.program.arguments]
        traced = trace(function(case.program, KINDS), *structs)
        if case.pad:
            program = random_paddings(traced.program, case.mesh, random.Random(case.pad))
            traced = replace(traced, program=program)
        chooser = Chooser(traced, case.mesh)
        chosen = chooser.draw(random.Random(case.draw))
        words = () if chosen is None else chooser.told(chosen)
    return msgspec.structs.replace(case, told=words)


class _Run:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.fn = function(case.program, KINDS)
        self.structs = [a.type.struct() for a in case.program.arguments]
        self.options: dict[str, Any] = {} if case.usual else QUICK

    def outcome(self) -> Outcome:
        try:
            reference = by_jit(self.fn, self.options, self.structs)
        except (*NOT_A_PROGRAM, jax.errors.JaxRuntimeError) as error:
            return Outcome("no program", _line(error))
        try:
            planned = self._planned()
        except (PlanError, TraceError) as error:
            if isinstance(error, NotAProgramError):  # a defect of ours
                return Outcome("raised", f"planning: {_line(error)}")
            return Outcome("refused", f"{getattr(error, 'kind', 'trace')}: {_line(error)}")
        except Exception as error:
            return Outcome("raised", f"planning: {_line(error)}")
        if planned is None:
            return Outcome("no choice")
        counts = dict(Counter(_primitives(self.traced.graph)))
        try:
            compiled = planned.jitted.lower(*self.structs).compile(self.options)
            runs = [(x, [plain(y) for y in compiled(*x)]) for x in self.given()]
        except Exception as error:
            return Outcome("raised", f"running: {_line(error)}", counts)
        try:
            verdicts = [self._verdict(reference, x, found) for x, found in runs]
        except jax.errors.JaxRuntimeError as error:
            return Outcome("no program", _line(error), counts)  # XLA cannot run the unsharded one
        order = ("wrong", "chaotic", "compiler", "own groups", "rounding", "right")
        verdict, reason = min(verdicts, key=lambda v: order.index(v[0]))
        return Outcome(verdict, reason, counts)

    def given(self) -> list[list[Any]]:
        return [arguments(self.case.program, variant) for variant in range(len(VARIANTS))]

    def _planned(self) -> CompiledPlan | None:
        case = self.case
        self.traced: Traced = trace(self.fn, *self.structs)
        if case.pad:
            program = self.traced.program
            padded = random_paddings(program, case.mesh, random.Random(case.pad))
            if padded.graph.nodes == program.graph.nodes:
                return None
            self.traced = replace(self.traced, program=padded)
        if case.route == "search":
            devices = 1
            for n in case.mesh:
                devices *= n
            found = planned_by_search(
                self.fn, *self.structs, cluster=f"{devices}xh100", emission=case.emission,
                time_limit_s=5.0,
            )  # fmt: skip
            self.traced = found.bound if isinstance(found.bound, Traced) else self.traced
            return found.compile()
        chooser = Chooser(self.traced, case.mesh)
        chosen = chooser.follow(case.told) if case.told else chooser.draw(random.Random(case.draw))
        if chosen is None:
            return None
        if case.route == "direct":
            return compile_plan(self.traced, chosen.decided.plan, emission=case.emission)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.json"
            chosen.plan(self.traced, case.emission).save(path)
            return load(path).bind(self.fn, *self.structs).compile()

    def _verdict(self, reference: Any, x: Sequence[Any], found: list[Any]) -> tuple[str, str]:
        expected = [plain(y) for y in reference(*x)]
        traced = trace(self.fn, *self.structs)
        complex_ = _has_complex(traced.graph)
        if not any(far.any() for far in differences(found, expected, has_complex=complex_)):
            return "right", ""
        runs = noise(traced, x)
        noisy = [[plain(y) for y in results] for results in runs]
        wrong, chaotic = judged(found, expected, noisy, has_complex=complex_)
        if not any(far.any() for far in wrong):
            return ("chaotic" if chaotic else "rounding"), ""
        other = [plain(y) for y in op_by_op(self.fn, x)]
        again, unsure = judged(found, other, noisy, has_complex=complex_)
        if not any(far.any() for far in again):
            return ("chaotic" if unsure else "compiler"), ""
        if GROUPED in _primitives(traced.graph):
            own = [plain(y) for y in of_own_groups(traced, x)]
            runs = noise(traced, x, own_groups=True)
            noisy = [[plain(y) for y in results] for results in runs]
            again, unsure = judged(found, own, noisy, has_complex=complex_)
            if not any(far.any() for far in again):
                return ("chaotic" if unsure else "own groups"), ""
        rows = described(wrong, found, expected)
        return "wrong", "; ".join(map(str, rows))


def _has_complex(graph: Graph) -> bool:
    types = [t for node in graph.nodes for t in node.outputs]
    return any(t.dtype.startswith("complex") for t in types) or any(
        _has_complex(body) for node in graph.nodes for body in node.bodies
    )


def _primitives(graph: Graph) -> list[str]:
    found: list[str] = []
    for node in graph.nodes:
        found.append(node.op)
        for body in node.bodies:
            found += _primitives(body)
    return found


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300] if text else ''}"
