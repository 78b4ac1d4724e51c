"""Rules that the search tries; the others change nothing that a plan is priced by.

Left out are rules that only move elementwise work, casts and transposes inside one fusion, which
the compiler does by itself, and `merge-rows`, which is `merge-projections` read the other way
round.
"""

from __future__ import annotations

from substitutions import BOUNDED, WORTHS, worth_of_row

SEARCHED = (
    "merge-projections", "merge-three-projections", "merge-batch-projections", "merge-gate-and-up",
    "split-projection", "reassociate-right", "reassociate-left", "reassociate-batch",
    "reassociate-batch-left", "factor-weight", "factor-input", "expand-weight", "fold-low-rank",
    "unfold-low-rank", "split-k", "merge-k", "merge-batch-k", "scale-after-product",
    "scale-into-weight", "scale-after-batch", "column-gain-into-weight", "norm-gain-into-weight",
    "row-norm-after-product", "batch-norm-into-convolution", "scale-into-convolution",
    "merge-convolutions", "merge-convolution-inputs", "factor-convolution", "cast-rows",
    "cast-less-rows", "add-of-sums", "sum-of-concat", "factor-out-of-sum", "merge-lookups",
    "lookup-after-product", "lookup-before-product", "lookup-after-relu", "lookup-of-columns",
    "merge-tables",
)  # fmt: skip


def rules_for(wish: bool | str) -> tuple[str, ...]:
    """Rules that may be applied.

    Args:
        wish: the option `substitutions`.
    """
    if wish is False:
        return ()
    least = WORTHS.index(BOUNDED if wish is True else wish)
    return tuple(r for r in SEARCHED if WORTHS.index(worth_of_row(r).floats) <= least)
