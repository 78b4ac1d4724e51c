"""The worth of each row of the catalogue; a test derives every one from the row."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import RuleError
from ..worth import BOUNDED, EXACT, REASSOCIATED, Worth

_ROWS: Mapping[Worth, tuple[str, ...]] = {
    Worth(EXACT, EXACT, keeps=True, sums=0, ops=0): (
        "cast-before-transpose", "cast-after-transpose", "cast-parts", "cast-whole",
        "cast-rows", "cast-less-rows", "cast-before-expand", "transpose-twice",
        "transpose-after-add", "transpose-after-mul", "transpose-after-relu",
        "transpose-after-exp", "transpose-after-scale", "max-of-transpose",
        "concat-of-transposes", "relu-whole", "add-whole", "concat-geometry", "split-of-concat",
        "merge-lookups", "lookup-after-relu", "lookup-of-columns", "merge-tables",
        "sharded-weight", "sequence-parallel-relu", "sequence-parallel-cast",
        "sequence-parallel-add", "sequence-parallel-mul", "lookup-by-columns",
        "lookup-by-rows-asked", "all-reduce-as-scatter-and-gather",
        "scatter-and-gather-as-all-reduce", "no-round-trip", "no-gather-to-cut",
        "gather-after-relu", "gather-before-relu", "gather-after-exp", "gather-after-cast",
        "gather-after-add", "copy-after-relu", "copy-after-add",
    ),
    Worth(REASSOCIATED, EXACT, keeps=True, sums=0, ops=0): (
        "attention-heads-parallel",
    ),
    Worth(REASSOCIATED, EXACT, keeps=True, sums=2, ops=0): (
        "merge-projections", "merge-three-projections", "split-projection", "merge-rows",
        "transpose-product", "product-of-transposes", "merge-batch-projections",
        "merge-convolutions", "sum-of-transpose", "lookup-after-product",
        "lookup-before-product", "data-parallel", "column-parallel", "head-or-expert-parallel",
        "gather-after-linear", "delay-reduction-past-concat", "reduce-then-cut",
    ),
    Worth(REASSOCIATED, EXACT, keeps=True, sums=2, ops=1): (
        "merge-k", "merge-batch-k", "merge-convolution-inputs",
    ),
    Worth(REASSOCIATED, EXACT, keeps=True, sums=2, ops=2): (
        "merge-gate-and-up",
    ),
    Worth(REASSOCIATED, EXACT, keeps=False, sums=2, ops=1): (
        "split-k", "sum-of-concat",
    ),
    Worth(REASSOCIATED, EXACT, keeps=False, sums=2, ops=2): (
        "norm-gain-into-weight", "sum-of-add", "add-of-sums", "merge-reductions",
    ),
    Worth(REASSOCIATED, EXACT, keeps=False, sums=3, ops=0): (
        "partial-sum",
    ),
    Worth(REASSOCIATED, EXACT, keeps=False, sums=3, ops=1): (
        "row-parallel",
    ),
    Worth(REASSOCIATED, EXACT, keeps=False, sums=5, ops=1): (
        "column-then-row-parallel",
    ),
    Worth(BOUNDED, EXACT, keeps=False, sums=0, ops=4): (
        "merge-scale-of-sum",
    ),
    Worth(BOUNDED, EXACT, keeps=False, sums=2, ops=0): (
        "sum-of-neg",
    ),
    Worth(BOUNDED, EXACT, keeps=False, sums=2, ops=2): (
        "factor-weight", "factor-input", "expand-weight", "scale-after-product",
        "scale-into-weight", "scale-after-sum", "scale-after-batch", "column-gain-into-weight",
        "row-norm-after-product", "batch-norm-into-convolution", "scale-into-convolution",
        "factor-convolution", "factor-out-of-sum", "delay-reduction-past-gain",
    ),
    Worth(BOUNDED, EXACT, keeps=False, sums=4, ops=0): (
        "reassociate-right", "reassociate-left", "reassociate-batch", "reassociate-batch-left",
    ),
    Worth(BOUNDED, EXACT, keeps=False, sums=4, ops=2): (
        "fold-low-rank", "unfold-low-rank",
    ),
}  # fmt: skip
_KNOWN = {name: worth for worth, names in _ROWS.items() for name in names}


def worth_of_row(name: str) -> Worth:
    """What a row of the catalogue is worth.

    Raises:
        RuleError: if the row is not in this list.
    """
    if name not in _KNOWN:
        raise RuleError(
            "the catalogue does not say what the rule is worth in floats", where=name,
            remedy="add what `judge_row(row).worth()` says to substitutions/catalogue/worth.py",
        )  # fmt: skip
    return _KNOWN[name]
