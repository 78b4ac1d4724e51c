"""Factor specs: an op as an einsum over named factors, in the manner of Shardy's sharding rules.

    "b m k+, k+ n -> b m n"      a batched product whose factor k is summed away
    "(a b) c -> a b c"           a reshape; in `(a b)` a is the major factor
    "i j! -> i j!"               a sort along j: j must be whole on every device

A suffix on a factor, at any of its places, gives its kind:

    (none) plain    each device does its own part
    +      sum      splitting it leaves a partial sum in every result that lacks it
    >      max      the same with maximum,  <  min: with minimum
    ~      window   neighbours exchange a halo
    =      mapped   takes exactly the mesh axis of its name
    !      whole    cannot be split

`1` is a dimension of size one, or one that is broadcast.

A factor of the kind `single` is in no dimension, so the text has no suffix for it: one device runs
the op, and its results are partial sums of which the others hold zeros. It takes every mesh axis.

A *joint* factor is in no dimension either. An axis that splits it splits all of its members alike,
whole ones too, and the devices exchange their parts while the op runs: a ring of attention splits
queries and keys. Results are shards of what the op gives on the whole, never partial sums over it.
Its size is what the number of parts must divide.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .errors import IRError
from .mesh import Mesh
from .sharding import Sharding
from .types import Shape

KINDS: Mapping[str, str] = {
    "": "plain", "+": "sum", ">": "max", "<": "min", "~": "window", "!": "whole",
    "=": "mapped",
}  # fmt: skip
# How the results of an op that splits such a factor are reduced.
REDUCED: Mapping[str, str] = {"sum": "sum", "single": "sum", "max": "max", "min": "min"}
_SUFFIX = {kind: mark for mark, kind in KINDS.items()}
_TOKEN = re.compile(r"\(|\)|[A-Za-z_]\w*[+><~!=]?|1")

Dim = tuple[str, ...]  # factors of one dimension, major first; () is a unit dimension


@dataclass(frozen=True)
class FactorSpec:
    """Factors of every dimension of every operand and result, their sizes and kinds.

    kinds: those that are not plain.
    joint: joint factors, each with its members.
    """

    operands: tuple[tuple[Dim, ...], ...]
    results: tuple[tuple[Dim, ...], ...]
    sizes: tuple[tuple[str, int], ...]
    kinds: tuple[tuple[str, str], ...]
    joint: tuple[tuple[str, tuple[str, ...]], ...] = ()
    size_of: Mapping[str, int] = field(init=False, compare=False, repr=False)
    kind_of: Mapping[str, str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size_of", dict(self.sizes))
        object.__setattr__(self, "kind_of", dict(self.kinds))

    def size(self, factor: str) -> int:
        return self.size_of[factor]

    def kind(self, factor: str) -> str:
        return self.kind_of.get(factor, "plain")

    def can_split(self, factor: str) -> bool:
        """Whether devices may share the factor."""
        return self.kind(factor) not in ("whole", "window")

    def splitting(self, factor: str) -> tuple[str, ...]:
        """The factor and the joint ones that split it."""
        return (factor, *(name for name, members in self.joint if factor in members))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.sizes)

    @property
    def points(self) -> int:
        """Product of the sizes of all factors in dimensions: the iterations of the loop nest."""
        joint = dict(self.joint)
        return math.prod(size for name, size in self.sizes if name not in joint)

    def __str__(self) -> str:
        kinds = dict(self.kinds)

        def side(tensors: tuple[tuple[Dim, ...], ...]) -> str:
            return ", ".join(" ".join(_show_dim(dim, kinds) for dim in dims) for dims in tensors)

        return f"{side(self.operands)} -> {side(self.results)}"


def _show_dim(dim: Dim, kinds: Mapping[str, str]) -> str:
    words = [name + _SUFFIX[kinds.get(name, "plain")] for name in dim]
    if not words:
        return "1"
    return words[0] if len(words) == 1 else f"({' '.join(words)})"


def factor_spec(
    text: str, operands: Sequence[Shape], results: Sequence[Shape], **sizes: int
) -> FactorSpec:
    """Builds a spec from its text form and the shapes it describes.

    Args:
        text: the form described at the top of this file.
        operands: shapes of the operands, in order.
        results: shapes of the results, in order.
        sizes: sizes of factors that occur only inside compounds.

    Raises:
        IRError: if text and shapes disagree.
    """
    left, arrow, right = text.partition("->")
    if not arrow:
        raise IRError(f"factor spec '{text}' has no '->'")
    kinds: dict[str, str] = {}
    known: dict[str, int] = dict(sizes)
    tensors_in = _parse_side(left, len(operands), kinds, text)
    tensors_out = _parse_side(right, len(results), kinds, text)
    shapes = (*operands, *results)
    for longest in (1, 99):  # single factors first: they give the sizes inside compounds
        for dims, shape in zip(tensors_in + tensors_out, shapes, strict=True):
            _unify(dims, shape, known, text, longest)
    used = {name for dims in tensors_in + tensors_out for dim in dims for name in dim}
    return FactorSpec(
        tensors_in,
        tensors_out,
        tuple((name, size) for name, size in known.items() if name in used),
        tuple(sorted((name, kind) for name, kind in kinds.items() if kind != "plain")),
    )


def _parse_side(
    side: str, count: int, kinds: dict[str, str], text: str
) -> tuple[tuple[Dim, ...], ...]:
    parts = side.split(",") if count else []
    if len(parts) != count:
        raise IRError(f"factor spec '{text}' lists {len(parts)} tensors where there are {count}")
    return tuple(_parse_tensor(part, kinds) for part in parts)


def _parse_tensor(part: str, kinds: dict[str, str]) -> tuple[Dim, ...]:
    dims: list[Dim] = []
    group: list[str] | None = None
    for token in _TOKEN.findall(part):
        if token == "(":
            group = []
        elif token == ")":
            dims.append(tuple(group or ()))
            group = None
        elif token == "1":
            dims.append(())
        else:
            name = token.rstrip("+><~!=")
            if kind := KINDS[token[len(name) :]]:
                kinds[name] = kind if kind != "plain" else kinds.get(name, "plain")
            if group is None:
                dims.append((name,))
            else:
                group.append(name)
    return tuple(dims)


def _unify(
    dims: tuple[Dim, ...], shape: Shape, known: dict[str, int], text: str, longest: int
) -> None:
    if len(dims) != len(shape):
        raise IRError(f"factor spec '{text}' gives {len(dims)} dimensions to the shape {shape}")
    for dim, size in zip(dims, shape, strict=True):
        if not 1 <= len(dim) <= longest:
            continue
        missing = [name for name in dim if name not in known]
        rest = math.prod(known[name] for name in dim if name in known)
        if len(missing) == 1 and rest and size % rest == 0:
            known[missing[0]] = size // rest
        elif missing or rest != size:
            raise IRError(f"factor spec '{text}': {' '.join(dim)} is {rest}, the dimension {size}")


# --- from a choice of axes per factor to shardings -------------------------------------------

FactorAxes = Mapping[str, tuple[str, ...]]


def dim_axes(dim: Dim, axes: FactorAxes, sizes: Mapping[str, int], mesh: Mesh) -> tuple[str, ...]:
    """Mesh axes of one dimension when its factors are split as `axes` says.

    In a compound only a prefix can be split: a factor may be, if every factor that is more
    major is split completely, since shards are contiguous.

    Raises:
        IRError: if the split is not contiguous or does not divide.
    """
    if len(dim) == 1:
        mine = axes.get(dim[0], ())
        size, ways = sizes[dim[0]], mesh.product(mine)
        if size % ways:
            raise IRError(f"factor '{dim[0]}' of size {size} does not divide {ways} ways")
        return mine
    found: tuple[str, ...] = ()
    open_factor = ""
    for name in dim:
        mine = axes.get(name, ())
        ways = mesh.product(mine)
        if mine and open_factor:
            raise IRError(f"factor '{name}' cannot be split while '{open_factor}' is not wholly")
        if sizes[name] % ways:
            raise IRError(f"factor '{name}' of size {sizes[name]} does not divide {ways} ways")
        if ways != sizes[name]:
            open_factor = name
        found += mine
    return found


def shardings_of(
    spec: FactorSpec, axes: FactorAxes, mesh: Mesh
) -> tuple[tuple[Sharding, ...], tuple[Sharding, ...]]:
    """Shardings of operands and raw results of an op whose factors are split as `axes` says.

    A result that lacks a split factor is partial over that factor's axes if the factor is
    reduced, and the same on all of its devices if not.

    Raises:
        IRError: if the assignment is not legal for this spec.
    """
    for name, mine in axes.items():
        if mine and not spec.can_split(name):
            raise IRError(f"factor '{name}' is {spec.kind(name)} and cannot be split")
    return (
        tuple(operand_sharding(spec, k, axes, mesh) for k in range(len(spec.operands))),
        tuple(result_sharding(spec, k, axes, mesh) for k in range(len(spec.results))),
    )


def _split_members(spec: FactorSpec, axes: FactorAxes, mesh: Mesh) -> FactorAxes:
    """Axes of the factors in dimensions, with those of the joint factors that they are members of.

    Raises:
        IRError: if two factors split a third one, or a joint one does not divide.
    """
    if not spec.joint:
        return axes
    found = {name: mine for name, mine in axes.items() if name not in dict(spec.joint)}
    for name, members in spec.joint:
        ways = mesh.product(axes.get(name, ()))
        if spec.size(name) % ways:
            raise IRError(f"factor '{name}' of size {spec.size(name)} does not divide {ways} ways")
        for member in members if ways > 1 else ():
            if found.get(member):
                raise IRError(f"'{name}' and another factor both split '{member}'")
            found[member] = axes[name]
    return found


def operand_sharding(spec: FactorSpec, k: int, axes: FactorAxes, mesh: Mesh) -> Sharding:
    """Sharding of operand k, by the axes of its own factors.

    Raises:
        IRError: if the split is not contiguous or does not divide.
    """
    axes = _split_members(spec, axes, mesh)
    return Sharding(tuple(dim_axes(dim, axes, spec.size_of, mesh) for dim in spec.operands[k]))


def result_sharding(spec: FactorSpec, k: int, axes: FactorAxes, mesh: Mesh) -> Sharding:
    """Raw sharding of result k, by the axes of its own factors and of those reduced.

    Raises:
        IRError: if the split is not contiguous or does not divide.
    """
    dims, kinds = spec.results[k], spec.kind_of
    here = {name for dim in dims for name in dim}
    partial = {
        axis: REDUCED[kinds[name]]
        for name, mine in axes.items()
        if name not in here and kinds.get(name) in REDUCED
        for axis in mine
    }
    axes = _split_members(spec, axes, mesh)
    return Sharding(
        tuple(dim_axes(dim, axes, spec.size_of, mesh) for dim in dims),
        tuple((axis, partial[axis]) for axis in mesh.names if axis in partial),
    )
