"""Planned, written and compiled collectives side by side, and the reasons for differences.

For each kind and group of devices there are three numbers of bytes on the wire:

    predicted   what the plan says
    written     what the emitter put into the program
    compiled    what the compiler's result holds

Predicted and written must be equal. Between written and compiled the compiler may rewrite:

    combined, split    other counts, the same bytes
    as another kind    a reduce-scatter as all-reduce and slice, an all-reduce as reduce-scatter
                       and all-gather, an all-reduce whose result is cut as reduce-scatter
    joined             an all-reduce over n devices and one over m of what it makes, over n m
    widened            16-bit numbers summed in 32 bits; a CPU sends them so too
    in blocks          rows that devices exchange, on CPUs as many to each
    left out           equal ones merged, unused ones dropped, a constant one run outside its loop

What compiled has beyond that is unplanned: a reshard that the partitioner added. Collectives that
the user's `shard_map` has count as predicted and as written.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from costmodel import full_bytes, mapped_collectives, wire_bytes
from ir import HALVES, Mesh
from ir.analysis import FlatOp

from ...common.units_text import bytes_text
from ...emit.hlo import HloInstruction, like
from ...emit.row_exchange import block_rows
from ...emit.run import Written
from ...sharding.cost.account import Collective

# Differences below this share are rounding: the compiler pads and drops scalars.
SAME = 1e-3
Key = tuple[str, int]  # kind, devices of a group
Sums = dict[Key, tuple[float, float]]  # bytes, count
PERMUTE, SUM = "collective-permute", "all-reduce"


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of collective over groups of one size; bytes are sent by each device per call.

    unexplained_bytes: of the difference between predicted and compiled.
    """

    kind: str
    group_size: int
    predicted_bytes: float
    written_bytes: float | None
    compiled_bytes: float
    predicted_count: float
    compiled_count: float
    unexplained_bytes: float
    note: str


def compare_collectives(
    predicted: Iterable[Collective],
    written: Iterable[Written] | None,
    mesh: Mesh,
    compiled: Iterable[HloInstruction],
    *,
    widens: bool = False,
    own: Iterable[tuple[FlatOp, Mapping[int, float]]] = (),
) -> tuple[Row, ...]:
    """Rows sorted by kind and group.

    Args:
        predicted: of the plan.
        written: steps in the program; None where the compiler's partitioner chooses them.
        mesh: of the plan.
        compiled: instructions of the compiled program.
        widens: the compiler has no collectives on 16-bit numbers, as that for CPUs.
        own: the program's `shard_map`s, which have collectives of their own, and by how much the
            parts of each are split.
    """
    said = predicted_sums(predicted)
    steps = None if written is None else tuple(written)
    put = dict(said) if steps is None else _written(steps, mesh)
    mapped = _mapped(own)
    for key, sums in mapped.items():
        _add(put, key, *sums)
    held = _Compiled.of(compiled)
    left = {key: held.bytes_of(key) - put.get(key, (0.0, 0.0))[0] for key in {*put, *held.sums}}
    notes: dict[Key, list[str]] = {key: [] for key in {*said, *left}}
    _widened(held, left, notes)
    if widens and steps is not None:
        halves = _written([w for w in steps if w.type.dtype in HALVES], mesh)
        _sent_wide(halves, held.widened, left, notes)
        _sent_in_blocks(steps, mesh, left, notes)
    _joined(left, notes)
    _rewritten(left, notes)
    rows: list[Row] = []
    for key in sorted(notes):
        bytes_said, count_said = said.get(key, (0.0, 0.0))
        bytes_put = put.get(key, (0.0, 0.0))[0]
        bytes_held, count_held = held.sums.get(key, (0.0, 0.0))
        unexplained = 0.0
        if not _same(bytes_said, bytes_put):
            unexplained += abs(bytes_said - bytes_put)
            notes[key].append("the program holds others than the plan says")
        rest = left.get(key, 0.0)
        if rest > SAME * max(bytes_put, bytes_held):
            unexplained += rest
            notes[key].append(f"unplanned{held.cause(key)}")
        elif -rest > SAME * max(bytes_put, bytes_held):
            if written is None:
                unexplained -= rest
                notes[key].append("not in the compiled program")
            else:
                notes[key].append("left out by the compiler: equal, unused or the same each time")
        elif count_held != count_said and bytes_said and bytes_held and not notes[key]:
            how = "combined" if count_held < count_said else "split"
            notes[key].append(f"{how} by the compiler")
        if key in mapped:
            notes[key].append(f"{bytes_text(mapped[key][0])} by the program's own shard_map")
        rows.append(
            Row(
                *key, bytes_said, None if written is None else bytes_put, bytes_held, count_said,
                count_held, unexplained, "; ".join(notes[key]),
            )
        )  # fmt: skip
    return tuple(rows)


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= SAME * max(a, b)


def _key(kind: str, group_size: int) -> Key:
    """Permutes of n devices may consist of shorter cycles, so that their groups say nothing."""
    return kind, 0 if kind == PERMUTE else group_size


def _add(sums: Sums, key: Key, sent: float, count: float) -> None:
    have = sums.get(key, (0.0, 0.0))
    sums[key] = (have[0] + sent, have[1] + count)


def predicted_sums(collectives: Iterable[Collective]) -> Sums:
    """Bytes and counts of a plan's collectives by kind and devices of a group."""
    sums: Sums = {}
    for c in collectives:
        if c.group_size > 1:
            _add(sums, _key(c.kind, c.group_size), c.bytes, c.count)
    return sums


def _mapped(ops: Iterable[tuple[FlatOp, Mapping[int, float]]]) -> Sums:
    """Bytes and counts of the collectives of the user's `shard_map`s."""
    sums: Sums = {}
    for op, split in ops:
        for c in mapped_collectives(op.node, split):
            count = c.count * op.weight
            _add(sums, _key(c.kind, c.group_size), c.sent_bytes * count, count)
    return sums


def _written(written: Iterable[Written], mesh: Mesh) -> Sums:
    sums: Sums = {}
    for item in written:
        kind = item.step.collective
        group = mesh.product(item.step.axes)
        if kind is not None and group > 1:
            sent = wire_bytes(kind, group, full_bytes(item.step, item.type, mesh))
            _add(sums, _key(kind, group), sent * item.count, item.count)
    return sums


@dataclass
class _Compiled:
    """Sums of the compiled program, of the widened ones apart, and what the dearest are for."""

    sums: Sums = field(default_factory=dict[Key, tuple[float, float]])
    widened: dict[Key, float] = field(default_factory=dict[Key, float])
    dearest: dict[Key, tuple[float, str]] = field(default_factory=dict[Key, tuple[float, str]])

    @classmethod
    def of(cls, instructions: Iterable[HloInstruction]) -> _Compiled:
        found = cls()
        for item in instructions:
            c = item.collective
            key, sent = _key(like(c.kind), c.group_size), c.wire_bytes * c.count
            _add(found.sums, key, sent, c.count)
            if item.promoted:
                found.widened[key] = found.widened.get(key, 0.0) + sent / 2
            found.dearest[key] = max(found.dearest.get(key, (0.0, "")), (sent, item.op_name))
        return found

    def bytes_of(self, key: Key) -> float:
        return self.sums.get(key, (0.0, 0.0))[0]

    def cause(self, key: Key) -> str:
        name = self.dearest.get(key, (0.0, ""))[1]
        return f": made for {name}" if name else ""


def _widened(held: _Compiled, left: dict[Key, float], notes: Mapping[Key, list[str]]) -> None:
    for key, extra in held.widened.items():
        left[key] -= extra
        notes[key].append("16-bit numbers summed in 32 bits by the compiler")


def _sent_wide(
    halves: Sums, summed: Mapping[Key, float], left: dict[Key, float],
    notes: Mapping[Key, list[str]],
) -> None:  # fmt: skip
    """Takes out of `left` what is there because exactly the 16-bit numbers take 32.

    Those that are `summed` in 32 bits are out already.
    """
    for key, (sent, _) in halves.items():
        others = sent - summed.get(key, 0.0)
        if others > SAME * sent and _same(left.get(key, 0.0), others):
            left[key] -= others
            notes[key].append("16-bit numbers sent in 32 bits by the compiler")


def _sent_in_blocks(
    steps: Iterable[Written], mesh: Mesh, left: dict[Key, float], notes: Mapping[Key, list[str]]
) -> None:
    """Takes out of `left` what blocks of equal sizes have more than the rows of an exchange."""
    more: Sums = {}
    for item in steps:
        rows, n = (item.type.shape or (0,))[0], mesh.product(item.step.axes)
        if item.step.kind == "all-to-all" and item.step.dim < 0 < rows:
            full = (block_rows(rows, n) * n / rows - 1.0) * item.type.nbytes
            _add(more, _key("all-to-all", n), wire_bytes("all-to-all", n, full) * item.count, 0.0)
    for key, (sent, _) in more.items():
        if (extra := min(sent, left.get(key, 0.0))) > 0.0:
            left[key] -= extra
            notes[key].append("rows sent in blocks of equal sizes, as this compiler needs")


def _joined(left: dict[Key, float], notes: Mapping[Key, list[str]]) -> None:
    """Takes out of `left` sums over two kinds of groups that the compiler has over their product.

    Of S bytes, a sum over n devices sends 2 (n - 1) / n S.
    """
    groups = sorted(group for kind, group in left if kind == SUM and group > 1)
    for n, m in itertools.combinations_with_replacement(groups, 2):
        if n * m not in groups:
            continue
        each = [wire_bytes(SUM, group, 1.0) for group in (n, m, n * m)]
        have = left[SUM, n * m] / each[2]
        lacking = -left[SUM, n] / each[0] / (2.0 if n == m else 1.0), -left[SUM, m] / each[1]
        moved = min(have, *lacking)
        if moved <= 0.0:
            continue
        for group, share in zip((n, m), each, strict=False):
            left[SUM, group] += moved * share
        left[SUM, n * m] -= moved * each[2]
        notes[SUM, n * m].append(f"holds sums over {n} and then {m} that the compiler joined")
        for group in {n, m}:
            notes[SUM, group].append(f"joined in the compiler with sums over {n * m // group}")


# (kind written, [(kind compiled, bytes of it per byte written)])
_REWRITES = (
    ("reduce-scatter", (("all-reduce", 2.0),), "became all-reduce and slice"),
    ("all-reduce", (("reduce-scatter", 0.5), ("all-gather", 0.5)),
     "became reduce-scatter and all-gather"),
    ("all-reduce", (("reduce-scatter", 0.5),), "cut afterwards, became reduce-scatter"),
)  # fmt: skip


def _rewritten(left: dict[Key, float], notes: Mapping[Key, list[str]]) -> None:
    """Takes out of `left` what one kind lacks and others have too much of for a known reason."""
    groups = sorted({group for _, group in left})
    for group in groups:
        for source, targets, how in _REWRITES:
            lacking = -left.get((source, group), 0.0)
            have = [left.get((kind, group), 0.0) / share for kind, share in targets]
            moved = min(lacking, *have)
            if moved <= 0:
                continue
            left[(source, group)] += moved
            notes[(source, group)].append(f"{how} in the compiler")
            for kind, share in targets:
                left[(kind, group)] -= moved * share
                notes[(kind, group)].append(f"holds {source}s that the compiler rewrote")
