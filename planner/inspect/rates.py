"""How many examples and tokens a step of a plan takes in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ir import TensorType

from .analysed_plan import AnalysedPlan


def examples_of(analysed: AnalysedPlan) -> int:
    """Size of the batch dimension of most batch arguments; 0 where none was found."""
    sizes = Counter(t.shape[d] for t, d in _batches(analysed))
    return max(sizes, key=lambda size: (sizes[size], size), default=0)


def tokens_of(analysed: AnalysedPlan) -> int:
    """Batch times sequence of an argument of whole numbers of these two dimensions; 0 if none is.

    Argument [examples, 1], such as a label, has no sequence.
    """
    examples = examples_of(analysed)
    ids = [
        t.shape[0] * t.shape[1]
        for t, d in _batches(analysed)
        if len(t.shape) == 2 and t.dtype.startswith(("int", "uint"))
        and t.shape[d] == examples and t.shape[1 - d] > 1
    ]  # fmt: skip
    return max(ids, default=0)


def _batches(analysed: AnalysedPlan) -> Iterator[tuple[TensorType, int]]:
    """Types of the arguments that have a batch dimension, and which it is."""
    for value, item in zip(analysed.flat.inputs, analysed.graph.inputs, strict=True):
        found = [d for d, kind in enumerate(analysed.kinds.of_value(value)) if kind == "batch"]
        if item.role == "batch" and found:
            yield item.type, found[0]
