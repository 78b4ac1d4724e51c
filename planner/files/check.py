"""Whether the plan of a program is sound: graph, cluster, mesh and decisions fit each other.

A plan file may come from anyone. After these checks a plan can be printed, explained, bound and
compiled without meeting a name, place or number that its own graph and mesh do not have.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable

from costmodel import Cluster
from costmodel.compiler import analyse
from ir import (
    FactorSpec,
    Graph,
    IRError,
    Mesh,
    Sharding,
    TensorType,
    check,
    digest,
    factor_marks,
    lookup,
    parse,
    passing_groups,
    strategy_of,
)
from ir.analysis import Decisions, FlatOp, FlatProgram, flat_type, flatten, operand_types
from profiles import ProfileError
from substitutions import patterns

from ..common.errors import PlanError
from ..common.options import Options
from ..common.resolved_pins import Wishes, wishes_for
from ..common.stop import PROVED, Stop
from .program_plan import ProgramPlan, decisions_of

MOST_DEVICES = 1_000_000
ROUNDING = 1e-9  # relative: sums of the same seconds in another order


def check_program(program: ProgramPlan, where: str) -> None:
    """Checks the plan of a program against itself.

    Raises:
        PlanError: says what in the file contradicts what.
    """
    decisions = decisions_of(program, where)
    try:
        graph = _graph(program)
        flat = flatten(graph)
        _check_machine(program, decisions.mesh)
        _check_substitutions(program)
        _check_padded(program)
        _check_ordered(program)
        _check_blocks(program)
        _check_arguments(program, graph)
        _check_ends(decisions, graph)
        _check_wishes(program, flat, decisions)
        _check_ops(program, flat, decisions)
        _check_values(program, flat, decisions)
        _check_in_parts(flat, decisions)
        _check_figures(program)
    except (IRError, PlanError, ProfileError) as error:
        raise PlanError(
            f"is not a sound plan: {error}", kind="plan-file", where=where,
            remedy="make the plan again with this version",
        ) from error  # fmt: skip


def _graph(program: ProgramPlan) -> Graph:
    graph = parse(program.graph)
    if digest(graph) != program.graph_digest:
        raise IRError("its graph is not the one that its digest names; the file was changed")
    return check(graph, after="loading")


def _check_machine(program: ProgramPlan, mesh: Mesh) -> None:
    cluster = Cluster.from_dict(program.cluster, where="key `cluster`")
    if mesh.num_devices != cluster.num_devices or mesh.num_devices > MOST_DEVICES:
        raise IRError(
            f"the mesh {mesh} has {mesh.num_devices} devices, the cluster {cluster.num_devices}"
        )
    for row in program.collectives:
        if row.group_size != mesh.product(row.axes):
            raise IRError(f"a collective over {row.axes} of {mesh} has {row.group_size} members")


def _check_figures(program: ProgramPlan) -> None:
    """Whether the sums are those of their parts, and the bound and the reason to stop agree."""
    step_s = program.step_s
    pairs = [
        ("a step", step_s, program.compute_s + program.exposed_s),
        ("communication", program.communication_s, sum(row.seconds for row in program.collectives)),
        ("exposed communication", program.exposed_s, sum(c.exposed_s for c in program.collectives)),
    ]
    for what, said, found in pairs:
        if abs(said - found) > ROUNDING * max(said, found):
            raise IRError(f"it says that {what} takes {said} s, its parts take {found} s")
    hidden_s = program.communication_s - program.exposed_s
    if not program.overlap and hidden_s > ROUNDING * program.communication_s:
        raise IRError(f"nothing runs beside compute, but {hidden_s} s of communication are hidden")
    for row in program.collectives:
        if row.exposed_s > row.seconds * (1 + ROUNDING):
            raise IRError(f"of a collective of {row.seconds} s it exposes {row.exposed_s} s")
    gap_s = step_s - program.lower_bound_s
    if gap_s < -ROUNDING * step_s:
        raise IRError(f"its step of {step_s} s is below its bound of {program.lower_bound_s} s")
    if program.stop == Stop.OPTIMAL.name and gap_s > (PROVED + ROUNDING) * step_s:
        raise IRError(f"a step of {step_s} s is not proved by a bound of {program.lower_bound_s} s")
    if program.decided_ops > len(program.ops):
        raise IRError(f"it decides {program.decided_ops} of {len(program.ops)} operations")


def _check_substitutions(program: ProgramPlan) -> None:
    for row in program.substitutions:
        if row.rule not in patterns():
            raise IRError(f"it names the rule '{row.rule}', which the catalogue does not have")
    if bool(program.substitutions) != bool(program.traced_digest):
        raise IRError("it has substitutions without the digest of what they rewrote, or vice versa")


def _check_padded(program: ProgramPlan) -> None:
    for row in program.padded:
        least = row.was if row.parts else row.was + 1  # beside sizes that differ by borders
        if row.size < least or row.size % max(row.parts, 1):
            raise IRError(f"it pads a dimension of {row.was} to {row.size}")


def _check_ordered(program: ProgramPlan) -> None:
    for row in program.ordered:
        if row.parts < 2 or row.was % (2 * row.parts):
            raise IRError(f"it orders a sequence of {row.was} in {row.parts} parts")


def _check_blocks(program: ProgramPlan) -> None:
    devices = math.prod(size for _, size in program.mesh)
    if program.sorted_blocks == 1 or (program.sorted_blocks and devices % program.sorted_blocks):
        raise IRError(f"it sorts rows within {program.sorted_blocks} blocks on {devices} devices")


def _check_arguments(program: ProgramPlan, graph: Graph) -> None:
    if program.roles != tuple(item.role for item in graph.inputs):
        raise IRError("the roles of the arguments are not those of the graph")
    heads = sum(role == "constant" for role in program.roles)
    if any(not 0 <= a < len(program.roles) - heads for a in program.donated):
        raise IRError("a donated argument is missing")
    _check_once(program.donated, "donated argument")
    _check_once(program.host_states, "argument on the host")
    if any(a >= len(program.roles) - heads for a in program.host_states):
        raise IRError("an argument on the host is missing")
    for side in zip(*program.ties, strict=True):
        _check_once(side, "tie of argument or result")
    for argument, result in program.ties:
        if argument >= len(graph.inputs) or result >= len(graph.outputs):
            raise IRError(f"tie {argument} to {result}: there is no such argument or result")
        if graph.inputs[argument].type != graph.type_of(graph.outputs[result]):
            raise IRError(f"tie {argument} to {result}: the types differ")


def wishes_of(program: ProgramPlan, flat: FlatProgram) -> Wishes:
    """The user's wishes that a plan was made with.

    Raises:
        PlanError: if they speak of what its program does not have.
    """
    asked = Options(
        pins=program.pins, forbidden=program.forbidden, shardings=program.shardings,
        mesh=program.mesh,
    )  # fmt: skip
    return wishes_for(asked, flat, program.ties)


def _check_wishes(program: ProgramPlan, flat: FlatProgram, decisions: Decisions) -> None:
    found = wishes_of(program, flat)
    for v, state in zip(flat.inputs, decisions.inputs, strict=True):
        if not found.allows(v, state, decisions.mesh):
            raise IRError(f"'{flat.values[v].name}' is kept as {state} against the plan's pins")
    for (place, number), state in decisions.values.items():
        v = flat.names.get((place, number))
        asked = None if v is None else found.inside.get(v)
        if v is not None and asked is not None and not found.allows(v, state, decisions.mesh):
            raise IRError(f"a value is {state}, and {asked.pin.pattern} at {asked.where} is pinned")


def _check_ends(decisions: Decisions, graph: Graph) -> None:
    """Shardings of the program's arguments and results."""
    _check_count("arguments", len(decisions.inputs), len(graph.inputs))
    _check_count("results", len(decisions.outputs), len(graph.outputs))
    types = [*(i.type for i in graph.inputs), *map(graph.type_of, graph.outputs)]
    for type_, state in zip(types, (*decisions.inputs, *decisions.outputs), strict=True):
        _check_state(type_, state, decisions.mesh)
        if state.partial:
            raise IRError(f"an argument or result cannot be kept as {state}")


def _check_count(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise IRError(f"it has shardings of {found} {what}, its graph has {expected}")


def _check_once(items: Iterable[Hashable], what: str) -> None:
    for item, count in Counter(items).items():
        if count > 1:
            raise IRError(f"{what} {item} occurs {count} times")


def _check_state(type_: TensorType, state: Sharding, mesh: Mesh) -> None:
    if not state.fits(type_.shape, mesh):
        raise IRError(f"{type_} cannot be kept as {state} on {mesh}")
    if len({kind for _, kind in state.partial}) > 1:
        raise IRError(f"{state} waits for different reductions")


def _check_ops(program: ProgramPlan, flat: FlatProgram, decisions: Decisions) -> None:
    _check_once((row.place for row in program.ops), "op")
    free = analyse(flat).free
    ops = {op.place: op for op in flat.ops}
    needed = {op.place for op in flat.ops if not all(free[v] for v in op.outputs)}
    _check_places(needed, set(decisions.ops), "op")
    specs: dict[Hashable, tuple[FactorSpec, tuple[tuple[int, ...], ...]]] = {}
    seen: set[Hashable] = set()
    for place, roles in decisions.ops.items():
        op = ops[place]
        types = operand_types(flat, op)
        key = (op.node.op, types, op.node.outputs, repr(op.node.attrs), factor_marks(op.node))
        if (key, roles) in seen:
            continue
        seen.add((key, roles))
        if key not in specs:
            specs[key] = _spec(op, types)
        try:
            _check_roles(roles, *specs[key], decisions.mesh)
        except IRError as error:
            raise IRError(f"{op.node.op} at {_path(place)}: {error}") from error


def _spec(
    op: FlatOp, types: tuple[TensorType, ...]
) -> tuple[FactorSpec, tuple[tuple[int, ...], ...]]:
    spec = lookup(op.node.op).factors(types, op.node.outputs, dict(op.node.attrs))
    return spec, passing_groups(op.node, types)


def _check_roles(
    roles: tuple[str, ...], spec: FactorSpec, groups: tuple[tuple[int, ...], ...], mesh: Mesh
) -> None:
    if len(roles) != len(mesh.names):
        raise IRError(f"{len(roles)} roles {roles} for the {len(mesh.names)} axes of {mesh}")
    known = {"", *spec.names, *(f"@{g}" for g in range(len(groups)))}
    if unknown := [role for role in roles if role not in known]:
        raise IRError(f"it has no factor '{unknown[0]}'")
    strategy_of(spec, mesh, roles, groups)


def _check_places(needed: set[tuple[int, ...]], found: set[tuple[int, ...]], what: str) -> None:
    if lost := sorted(needed - found):
        raise IRError(f"it has no decision for the {what} at {_path(lost[0])}")
    if extra := sorted(found - needed):
        raise IRError(f"it has a decision for the {what} at {_path(extra[0])}, which is not there")


def _path(place: tuple[int, ...]) -> str:
    return "/".join(map(str, place))


def _check_values(program: ProgramPlan, flat: FlatProgram, decisions: Decisions) -> None:
    _check_once(((row.place, row.number) for row in program.values), "value")
    free = analyse(flat).free
    needed = {(*place, n): v for (place, n), v in flat.names.items() if not free[v]}
    found = {(*place, n): state for (place, n), state in decisions.values.items()}
    _check_places(set(needed), set(found), "value")
    for place, v in needed.items():
        _check_state(flat_type(flat, v), found[place], decisions.mesh)
        if v in flat.forced and not found[place].is_replicated:
            raise IRError(f"the value at {_path(place)} decides a branch and must be whole")
    for number, state in enumerate(decisions.inputs):
        if found[(number,)] != state:
            raise IRError(f"argument {number} is {state} and {found[(number,)]} at once")


def _check_in_parts(flat: FlatProgram, decisions: Decisions) -> None:
    known = {passage.site for passage in flat.passages}
    if extra := sorted(decisions.in_parts - known):
        raise IRError(f"a product runs in parts at {extra[0]}, which is not there")
    if extra := sorted(set(decisions.chunks) - known):
        raise IRError(f"an exchange runs in chunks at {extra[0]}, which is not there")
