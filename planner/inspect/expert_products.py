"""Products of experts, and what their factors are: experts, tokens or features.

A product of experts multiplies the rows of each group by a matrix of its own: a grouped product, or
a batched one along a dimension of a parameter. Its rows are tokens sorted by expert, or slots that
tokens are put into.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ir import BLOCKS, GROUPED, GROUPS, NEAR, ROWS, FactorSpec, Mesh, Strategy
from ir.analysis import FlatProgram, Kinds

EXPERTS: Final = "experts"
TOKENS: Final = "tokens"
BOTH: Final = "tokens and experts"
FEATURES: Final = "features"


def words_of(flat: FlatProgram, i: int, spec: FactorSpec, kinds: Kinds) -> Mapping[str, str]:
    """Factor of a product of experts -> what it is; nothing for other ops.

    Args:
        flat: the program.
        i: flat number of the op.
        spec: its factors.
        kinds: kinds of the program's dimensions.
    """
    op = flat.ops[i]
    if op.node.op == GROUPED and GROUPS in spec.names:
        known = {BLOCKS: TOKENS, ROWS: TOKENS, GROUPS: EXPERTS, NEAR: BOTH}
        return {name: known.get(name, FEATURES) for name in spec.names}
    if op.node.op != "dot_general":
        return {}
    tensors = [{f for dim in dims for f in dim} for dims in (*spec.operands, spec.results[0])]
    shared = tensors[0] & tensors[1] & tensors[2]
    experts = {f for f in shared if kinds.of_factor(i, f) == EXPERTS}
    if not experts:
        return {}
    held = [v in kinds.weights for v in op.inputs]
    matrices = tensors[held.index(True)] if any(held) else tensors[2]  # the gradient for them
    return {
        name: EXPERTS if name in experts else FEATURES if name in matrices else TOKENS
        for name in spec.names
    }  # fmt: skip


def split_of(words: Mapping[str, str], roles: Sequence[str], mesh: Mesh) -> dict[str, int]:
    """What a product of experts is split by -> over how many devices.

    Args:
        words: see `words_of`.
        roles: of each mesh axis.
        mesh: the mesh.
    """
    found: dict[str, int] = {}
    for axis, role in zip(mesh.names, roles, strict=True):
        if role in words:
            found[words[role]] = found.get(words[role], 1) * mesh.product((axis,))
    return dict(sorted(found.items()))


def split_text(split: Mapping[str, int]) -> str:
    """A split as text, such as `tokens over 8 devices, features over 2`."""
    parts = [f"{word} over {count}" for word, count in split.items()]
    return ", ".join([f"{parts[0]} devices", *parts[1:]]) if parts else "nothing"


def of_one_factor(menu: Sequence[Strategy], words: Mapping[str, str], mesh: Mesh) -> Iterator[int]:
    """Numbers of the strategies of a product of experts in which all axes split one factor."""
    sizes = [size for _, size in mesh.axes]
    for k, strategy in enumerate(menu):
        roles = {role for role, size in zip(strategy.roles, sizes, strict=True) if size > 1}
        if len(roles) == 1 and roles <= set(words):
            yield k


def by_most(
    menu: Sequence[Strategy], words: Mapping[str, str], what: str, mesh: Mesh
) -> tuple[int, ...]:
    """Numbers of the strategies of a product that split one of `words` over most devices."""
    ways = [split_of(words, strategy.roles, mesh).get(what, 1) for strategy in menu]
    return tuple(k for k, n in enumerate(ways) if n == max(ways))
