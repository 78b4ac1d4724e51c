"""What the rows of the catalogue are worth, as `worth_of` derives it of each; a test holds both."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import RuleError
from ..worth import BOUNDED, EXACT, REASSOCIATED, Worth

_EXACT = (
    "cast-before-transpose", "cast-after-transpose", "cast-parts", "cast-whole", "cast-rows",
    "cast-less-rows", "cast-before-expand", "transpose-twice", "transpose-after-add",
    "transpose-after-mul", "transpose-after-relu", "transpose-after-exp", "transpose-after-scale",
    "max-of-transpose", "concat-of-transposes", "relu-whole", "add-whole", "concat-geometry",
    "split-of-concat", "merge-lookups", "lookup-after-relu", "lookup-of-columns", "merge-tables",
)  # fmt: skip
_KEEPS = (
    "merge-projections", "merge-three-projections", "merge-gate-and-up", "split-projection",
    "merge-batch-projections", "merge-rows", "transpose-product", "product-of-transposes",
    "merge-convolutions", "sum-of-transpose", "lookup-after-product", "lookup-before-product",
    "merge-k", "merge-batch-k", "merge-convolution-inputs",
)  # fmt: skip
_REASSOCIATED = ("split-k", "sum-of-add", "add-of-sums", "sum-of-concat")
_BOUNDED = (
    "reassociate-right", "reassociate-left", "factor-weight", "factor-input", "expand-weight",
    "fold-low-rank", "unfold-low-rank", "reassociate-batch", "reassociate-batch-left",
    "scale-after-product", "scale-into-weight", "merge-scale-of-sum", "scale-after-sum",
    "scale-after-batch", "column-gain-into-weight", "norm-gain-into-weight",
    "row-norm-after-product", "batch-norm-into-convolution", "scale-into-convolution",
    "factor-convolution", "sum-of-neg", "factor-out-of-sum",
)  # fmt: skip
ROWS: Mapping[str, Worth] = {
    **dict.fromkeys(_EXACT, Worth(EXACT, EXACT, keeps=True)),
    **dict.fromkeys(_KEEPS, Worth(REASSOCIATED, EXACT, keeps=True)),
    **dict.fromkeys(_REASSOCIATED, Worth(REASSOCIATED, EXACT)),
    **dict.fromkeys(_BOUNDED, Worth(BOUNDED, EXACT)),
}


def worth_of_row(name: str) -> Worth:
    """What a row of the catalogue is worth.

    Raises:
        RuleError: if nothing is said of it.
    """
    if name not in ROWS:
        raise RuleError("the catalogue does not say what the rule is worth in floats", where=name)
    return ROWS[name]
