"""The settings of a search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from costmodel import IMBALANCE
from substitutions import WORTHS

from .errors import PlanError
from .mesh_setting import Named, Sizes, read_mesh, sizes_of, spec_text, wide_names
from .pins import Pin
from .surface import public_methods

RECOMPUTE = ("auto", "search", "written", "none", "selective", "full")
OFFLOAD = ("auto", "never")
ATTENTION = ("auto", "kernel", "written")
# Pipeline schedules that a search chooses from by default.
SCHEDULES = ("1f1b", "1f1b-eager", "1f1b-deep", "zb-h1", "zb-h2", "gpipe", "interleaved", "zb-v")


@public_methods
@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of a search; the same options and inputs give the same plan.

    time_limit_s: time limit of the search [s], after which the best plan so far is returned; to
        trace and to price the first one takes more. Without one, searches end by counted work, and
        the plan does not depend on the machine and its load.
    memory_bytes: memory limit of one device [bytes]; nine tenths of the cluster's if None.
    pins: pairs of (pattern of argument names, dimensions) such as ("params/*/w1", "[-,8]"); each
        dimension is `-` (whole), `*` (free), a number of parts, or mesh axes (`x`, `x*y`). A
        `PartitionSpec` or `NamedSharding` may stand for the text; a mapping for the pairs.
    mesh: mesh shape, such as (2, 4), with names of its axes if it is a mapping such as
        {"data": 2, "tensor": 4} or a `jax.sharding.Mesh`; searched if None.
    forbidden: pairs of (pattern, dimension); these dimensions stay whole.
    microbatches: number of micro-batches, with `optimizer=`; chosen if None.
    loss_reduction: reduction of the loss over micro-batches: mean, sum, or auto.
    baselines: whether baselines are priced.
    baseline: name of a baseline, such as "fsdp"; the result is the best plan within it.
    pipeline: number of stages, with `optimizer=`; or "off"; or "auto", which tries pipelines where
        the devices have more than one kind of link, or where no single program fits, unless pins,
        forbidden, mesh or baseline are given.
    schedules: pipeline schedules to choose from.
    emission: "shard_map" (explicit collectives) or "constraints" (XLA's partitioner).
    overlap: whether collectives may run beside compute; if not, a step is the sum of both. On CPU
        devices it is in any case.
    collective_matmul: whether products may run in parts beside permutes, instead of after a gather
        or before a reduce-scatter, where that is faster; never with `overlap=False` or
        `emission="constraints"`. Permutes count on one process for all devices of a host.
    substitutions: whether proven rules rewrite the program where its plan becomes faster. A name
        ("exact", "reassociated", "bounded", "unbounded") is the least accuracy of a rule in
        floats; True means "bounded".
    cache: whether plans and solved problems are read from and written to the user's plan store.
    shardings: treatment of the program's own shardings (constraints, those of jitted functions and
        of arrays, explicit ones): "pin" pins them on a mesh of their shape, "warn" chooses freely
        and counts them in a warning.
    recompute: what a backward pass computes again instead of keeping it: "auto" is as the program
        is written (`jax.checkpoint`), or a choice where that does not fit, the memory limit slows
        it down or the choice is clearly less work; "search" chooses in any case; "written" never;
        "none", "selective" (all but products with weights) and "full" (all but the inputs of
        layers) hold for every layer.
        Stages of pipelines have kinds of their own, and with "auto" choices that are faster.
    padding: whether dimensions whose sizes do not divide may be padded inside the program where
        its plan becomes faster; arguments and results keep their shapes.
    sequence_order: whether a causal sequence may be in zigzag from the batch to the loss,
        where that is faster.
    sort_in_blocks: whether rows that are sorted for grouped products may be sorted within blocks of
        rows, where that is faster.
    offload: whether values may be kept in the memory of the host, on devices whose link to it is
        known: "auto" keeps there what the program sends there (a `jax.checkpoint` policy that
        offloads), where `recompute` chooses stacks of loops whose copies compute hides, and, where
        a step does not fit or needs micro-batches, what its optimizer alone reads; "never" keeps
        all values on the devices.
    imbalance: how unequal groups of a grouped product are, such as experts: of w devices that hold
        them the busiest has w**imbalance times the rows of the mean. 0 if a router is held
        balanced; the default is that of measured experts under a mild power law.
    attention: whether attention that the program writes out in 16-bit numbers is run by the kernel
        of the devices: "auto" where kernels of the device are measured and the step has a lower
        bound; "kernel" wherever the kernel takes it; "written" never.
    """

    time_limit_s: float = math.inf
    memory_bytes: int | None = None
    pins: Any = ()  # kept as pairs of texts
    mesh: Any = None  # kept as sizes, or as pairs of a name and a size
    forbidden: tuple[tuple[str, int], ...] = ()
    microbatches: int | None = None
    loss_reduction: str = "auto"
    baselines: bool = True
    baseline: str | None = None
    pipeline: int | str = "auto"
    schedules: tuple[str, ...] = SCHEDULES
    emission: str = "shard_map"
    overlap: bool = True
    collective_matmul: bool = True
    substitutions: bool | str = True
    cache: bool = False
    shardings: str = "pin"
    recompute: str = "auto"
    padding: bool = True
    sequence_order: bool = True
    sort_in_blocks: bool = True
    offload: str = "auto"
    imbalance: float = IMBALANCE
    attention: str = "auto"

    def __post_init__(self) -> None:
        _check_number("time_limit_s", self.time_limit_s, whole=False, finite=False)
        if self.memory_bytes is not None:
            _check_number("memory_bytes", self.memory_bytes, whole=False)
        if self.microbatches is not None:
            _check_number("microbatches", self.microbatches)
        _check_word("loss_reduction", self.loss_reduction, ("auto", "mean", "sum"))
        if self.pipeline not in ("auto", "off"):
            _check_number("pipeline", self.pipeline)
        object.__setattr__(self, "schedules", _schedules(self.schedules))
        _check_word("emission", self.emission, ("shard_map", "constraints"))
        _check_word("shardings", self.shardings, ("warn", "pin"))
        _check_word("recompute", self.recompute, RECOMPUTE)
        _check_word("offload", self.offload, OFFLOAD)
        _check_word("attention", self.attention, ATTENTION)
        _check_flag("baselines", self.baselines)
        _check_share("imbalance", self.imbalance)
        _check_flag("overlap", self.overlap)
        _check_flag("padding", self.padding)
        _check_flag("sequence_order", self.sequence_order)
        _check_flag("sort_in_blocks", self.sort_in_blocks)
        _check_flag("collective_matmul", self.collective_matmul)
        if not isinstance(self.substitutions, bool) and self.substitutions not in WORTHS:
            raise _bad(
                "substitutions",
                f"must be True, False or one of {', '.join(WORTHS)}, got {self.substitutions!r}",
            )
        _check_flag("cache", self.cache)
        if self.baseline is not None and not self.baselines:
            raise _bad("baseline", f"is {self.baseline!r}, but baselines is False")
        if self.mesh is not None:
            object.__setattr__(self, "mesh", _mesh(self.mesh))
        object.__setattr__(self, "pins", _pins(self.pins, self.mesh))
        object.__setattr__(self, "forbidden", _pairs("forbidden", self.forbidden, int))

    @property
    def in_parts(self) -> bool:
        """Whether products may run in parts, which the emission must be able to write."""
        return self.collective_matmul and self.emission == "shard_map"

    @property
    def shape(self) -> Sizes | None:
        """Sizes of the plan's axes, if they are given."""
        return None if self.mesh is None else sizes_of(self.mesh)

    @property
    def axes(self) -> tuple[str, ...]:
        """What the plan's axes are called, the outermost first."""
        return wide_names(self.mesh)


def _check_number(name: str, value: object, *, whole: bool = True, finite: bool = True) -> None:
    """Checks that a value is a number above 0, of type int if `whole`."""
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        kind = "a whole number" if whole else "a number"
        raise _bad(name, f"must be {kind} above 0, got {value!r}")
    if not value > 0 or (finite and value == float("inf")):
        raise _bad(name, f"must be above 0, got {value!r}")


def _check_share(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise _bad(name, f"must be a number from 0 to 1, got {value!r}")


def _check_word(name: str, value: object, words: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in words:
        raise _bad(name, f"must be {', '.join(words[:-1])} or {words[-1]}, got {value!r}")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _bad(name, f"must be True or False, got {value!r}")


def _mesh(value: object) -> Sizes | Named:
    try:
        return read_mesh(value)
    except ValueError as error:
        raise _bad("mesh", str(error)) from None


def _pins(value: object, mesh: Sizes | Named | None) -> tuple[tuple[str, str], ...]:
    """Pins as texts, without axes of size 1."""
    pairs = value
    if isinstance(value, Mapping):
        pairs = tuple(cast("Mapping[str, object]", value).items())
    ones = {axis[0] for axis in mesh or () if not isinstance(axis, int) and axis[1] == 1}
    found: list[tuple[str, str]] = []
    for pattern, spec in _pairs("pins", pairs, object):
        if hasattr(spec, "mesh") and read_mesh(spec.mesh) != mesh:
            where = f"the sharding of '{pattern}' is over {dict(spec.mesh.shape)}"
            raise _bad("pins", f"{where}, which is not mesh={mesh!r}")
        try:
            text = spec_text(spec)
        except ValueError as error:
            told = f"must be pairs of a pattern and a sharding, got {value!r}: {error}"
            raise _bad("pins", told) from None
        pin = Pin.parse(pattern, text)
        found.append((pattern, str(pin.without(ones)) if ones.intersection(pin.axes) else text))
    return tuple(found)


def _pairs(name: str, value: object, kind: type) -> tuple[tuple[str, Any], ...]:
    """Pairs of a pattern and a `kind`, from any sequence of sequences."""
    pairs = cast("Sequence[object]", value) if _is_row(value) else None
    found = [tuple(cast("Sequence[Any]", pair)) for pair in pairs or () if _is_row(pair)]
    right = [
        len(pair) == 2 and isinstance(pair[0], str) and (kind is object or type(pair[1]) is kind)
        for pair in found
    ]
    if pairs is None or len(found) != len(pairs) or not all(right):
        what = "a sharding" if kind is object else "a dimension"
        raise _bad(name, f"must be pairs of a pattern and {what}, got {value!r}")
    return tuple((pair[0], pair[1]) for pair in found)


def _is_row(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


_EXAMPLES = {
    "pipeline": "a number of stages such as 4, 'auto' or 'off'",
    "schedules": "for example ('1f1b',)",
    "time_limit_s": "seconds, such as 60",
    "memory_bytes": "bytes, such as 70_000_000_000",
    "microbatches": "a number that divides the batch, such as 4",
    "loss_reduction": "what the loss does over examples",
    "emission": "'shard_map' unless the compiler shall choose the collectives",
    "baselines": "False to skip the hand-written plans",
    "overlap": "False to plan for collectives and compute one after the other",
    "collective_matmul": "False to gather before products and reduce after them",
    "substitutions": "False to plan the program as it is written, or 'exact'",
    "shardings": "'warn' to plan without what the program is written with, or 'pin'",
    "padding": "False to leave all sizes as they are",
    "sequence_order": "False to leave all sequences as they are",
    "sort_in_blocks": "False to sort all rows together",
    "recompute": "'auto' to have it chosen",
    "imbalance": "0 for equal groups",
    "offload": "'never' to keep everything on the devices",
    "attention": "'written' to run attention as the program writes it",
    "cache": "True to look plans up in the plan store",
    "baseline": "the name of a hand-written plan, such as 'fsdp', with baselines=True",
    "mesh": "sizes whose product is the number of devices, such as (2, 4) or {'data': 8}",
    "pins": "pairs such as (('params/*', '[-,8]'),)",
    "forbidden": "pairs such as (('params/*', 0),)",
}


def _schedules(given: Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if not names:
        raise _bad("schedules", "must name one or more, got none")
    if set(names) <= {"interleaved", "zb-v"}:
        raise _bad("schedules", f"stages of {names[0]} are those of another schedule, cut again: "
                   "name another one beside it")  # fmt: skip
    return names


def _bad(name: str, message: str) -> PlanError:
    return PlanError(
        message, kind="bad-option", where=f"Options.{name}", remedy=f"write {_EXAMPLES[name]}"
    )
