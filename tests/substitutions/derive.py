"""Parallel programs from plain ones by chains of catalogue rows: which rows, in how many rounds.

All rows at hand are applied everywhere, both ways, until both programs meet; then rows are left
out one by one as long as they still do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from substitutions import Row, Rule
from substitutions.catalogue.devices import COLLECTIVES, DERIVED
from substitutions.verify.saturate import saturates

ROUNDS, TERMS = 5, 6000
# One step each: one op split one way. All else is to follow.
STEPS = (
    "column-parallel", "row-parallel", "head-or-expert-parallel", "sequence-parallel-relu",
    "sequence-parallel-add", "partial-sum", "lookup-by-columns", "lookup-by-rows-asked",
)  # fmt: skip
_BATCH = (("x", 3), ("y", 3), ("z", 3))


def _row(name: str, left: str, right: str, ranks: tuple[tuple[str, int], ...] = ()) -> Row:
    return Row(name, left, right, ranks, parallel=True)


_MLP = "linear(relu(linear(x, w)), v)"
TARGETS: Mapping[str, Row] = {
    row.name: row
    for row in (
        _row("data", "linear(x, w)", "combine[1, k](linear(partition[1, k](x), replicate[k](w)))"),
        _row(
            "data, two layers",
            _MLP,
            "combine[1, k](linear(relu(linear(partition[1, k](x), replicate[k](w))), "
            "replicate[k](v)))",
        ),
        _row(
            "column, then row",
            _MLP,
            "reduce[k](linear(relu(linear(replicate[k](x), partition[1, k](w))), "
            "partition[2, k](v)))",
        ),
        _row(
            "sequence",
            "linear(relu(add(x, y)), w)",
            "combine[1, k](linear(relu(add(partition[1, k](x), partition[1, k](y))), "
            "replicate[k](w)))",
        ),
        _row(
            "attention heads",
            "batch-matmul(exp(batch-matmul(x, y)), z)",
            "combine[1, k](batch-matmul(exp(batch-matmul(partition[1, k](x), "
            "partition[1, k](y))), partition[1, k](z)))",
            _BATCH,
        ),
        _row(
            "experts",
            "batch-matmul(relu(batch-matmul(x, y)), z)",
            "combine[1, k](batch-matmul(relu(batch-matmul(partition[1, k](x), "
            "partition[1, k](y))), partition[1, k](z)))",
            _BATCH,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Derivation:
    """Rows of which none can be left out, and after how many rounds both programs meet."""

    rows: tuple[str, ...]
    rounds: int


def derive(target: Row) -> Derivation | None:
    """How a program follows from another one by rows; None if not within the limits.

    Args:
        target: both programs, for any degree.
    """
    (rule,) = target.rules()
    rows = [row for row in DERIVED if row.name in STEPS] + list(COLLECTIVES)
    if not _proved(rule, rows, ROUNDS):
        return None
    for row in list(rows):
        fewer = [other for other in rows if other is not row]
        if _proved(rule, fewer, ROUNDS):
            rows = fewer
    rounds = next(n for n in range(1, ROUNDS + 1) if _proved(rule, rows, n))
    return Derivation(tuple(row.name for row in rows), rounds)


def _proved(rule: Rule, rows: Sequence[Row], rounds: int) -> bool:
    return saturates(rule, [way for row in rows for way in _ways(row)], rounds, TERMS)


def _ways(row: Row) -> Iterator[Rule]:
    for rule in row.rules():
        yield rule
        back = tuple((b, a) for a, b in rule.outputs)
        yield replace(rule, source=rule.target, target=rule.source, outputs=back)
