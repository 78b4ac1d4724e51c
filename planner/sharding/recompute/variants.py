"""A traced program with another choice of what is computed again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ir import digest
from ir.trace import Program, Traced

from ...files.program_plan import RecomputedRow
from .again import with_recompute
from .frontier import SecondsOf
from .host_states import with_states_on_host
from .hosted import Stacked, hidden_behind, stacked_values, with_hosted
from .hosted_written import WrittenBody, written_bodies
from .keep import keeping_all
from .saved import Key

Rows = tuple[RecomputedRow, ...]


@dataclass(frozen=True)
class Variant:
    """A program as it is planned.

    traced: the program.
    rows: what is computed again; None if the program is as it was written.
    hosted: what of the rest waits in the memory of the host.
    states: arguments that wait there from step to step.
    """

    traced: Traced
    rows: Rows | None = None
    hosted: Rows = ()
    states: tuple[int, ...] = ()


def variant_of(kept: Traced, values: Iterable[Key], late: Collection[int] = ()) -> Variant:
    """A program that keeps everything, with some values computed again; `late` as of `kept_by`."""
    rows = rows_of(values)
    return Variant(applied(kept, rows, late), rows)


def kept_variant(traced: Traced, variant: Variant) -> Variant | None:
    """The program that keeps all values on the devices; None if a variant does, or moves states.

    Args:
        traced: the program as written.
        variant: the one that is planned.
    """
    if variant.states:
        return None
    kept = kept_by(traced)
    name = digest(kept.graph)
    if name == digest(variant.traced.graph):
        return None
    return Variant(kept, None if name == digest(traced.graph) else ())


def with_values_on_host(
    variant: Variant, values: Iterable[Key], late: Collection[int] = ()
) -> Variant:
    """A variant with some of its values in the memory of the host; `late` as of `with_hosted`."""
    hosted = rows_of(values)
    return Variant(_on_host(variant.traced, hosted, late), variant.rows, hosted)


def kept_by(traced: Traced, late: Collection[int] = ()) -> Traced:
    """The traced function as the program that keeps everything.

    Args:
        traced: forward and backward pass.
        late: inputs that are there only when the backward pass begins.
    """
    return replace(traced, program=keeping_all(traced.program, late))


def may_wait(program: Program) -> bool:
    """Whether values of a program that keeps everything may wait on the host."""
    return any(_waiting(program))


def _waiting(program: Program) -> tuple[Sequence[Stacked], Sequence[WrittenBody]]:
    """What loops over layers stack up, and the bodies with layers that are written out.

    Values beside loops over layers are tables and masks, no layers: they stay on the devices.
    """
    stacked = stacked_values(program)
    around = {one.key[0][:-2] for one in stacked}
    return stacked, [body for body in written_bodies(program) if body.place not in around]


def hosted_variants(
    variant: Variant,
    seconds_of: Callable[[Traced], SecondsOf],
    copy_s: Callable[[float], float],
) -> Iterator[Variant]:
    """A variant with values on the host: what compute hides the copies of, then all.

    Those are the stacks of its loops over layers, and values of layers that are written out.

    Args:
        variant: with all that it keeps on the devices.
        seconds_of: seconds of the nodes of a program, each split evenly over all devices.
        copy_s: seconds of copying an amount of all devices together to the host [byte].
    """
    stacked, written = _waiting(variant.traced.program)
    if not stacked and not written:
        return
    seconds, hidden = seconds_of(variant.traced), list[Key]()
    for place in dict.fromkeys(one.key[0] for one in stacked):
        here = [(one.key, one.nbytes) for one in stacked if one.key[0] == place]
        hidden += hidden_behind(here, seconds(place[:-1]), copy_s)
    for body in written:
        compute_s = sum(seconds((*body.place, i)) for i in body.forward)
        hidden += hidden_behind(body.each(), compute_s, copy_s)
    yield with_values_on_host(variant, hidden)
    apart = (key for body in written for key, _ in body.each())
    yield with_values_on_host(variant, [*(one.key for one in stacked), *apart])


def with_states(variant: Variant, states: Iterable[int]) -> Variant:
    """A variant with some arguments in the memory of the host; see `states_of`."""
    chosen = tuple(sorted(states))
    return replace(variant, traced=with_states_on_host(variant.traced, chosen), states=chosen)


def as_planned(
    traced: Traced, rows: Rows | None, hosted: Rows, states: tuple[int, ...] = ()
) -> Traced:
    """A traced function with what a plan says is computed again, and waits on the host."""
    kept = _on_host(traced, hosted) if rows is None else with_choice(traced, rows, hosted)
    return with_states_on_host(kept, states)


def with_choice(traced: Traced, rows: Rows, hosted: Rows, late: Collection[int] = ()) -> Traced:
    """A traced function with some values computed again, and some of the rest on the host."""
    return _on_host(applied(kept_by(traced, late), rows, late), hosted, late)


def _on_host(traced: Traced, hosted: Rows, late: Collection[int] = ()) -> Traced:
    return replace(traced, program=with_hosted(traced.program, keys_of(hosted), late))


def applied(kept: Traced, rows: Rows, late: Collection[int] = ()) -> Traced:
    """A program that keeps everything, with the values of some rows computed again."""
    return replace(kept, program=with_recompute(kept.program, keys_of(rows), late))


def keys_of(rows: Rows) -> list[Key]:
    """The values of some rows of a plan file."""
    return [(row.place, v) for row in rows for v in row.numbers]


def rows_of(values: Iterable[Key]) -> Rows:
    """The rows of a plan file, in order."""
    ordered: Sequence[Key] = sorted(values)
    return tuple(
        RecomputedRow(place, tuple(v for _, v in group))
        for place, group in groupby(ordered, key=lambda key: key[0])
    )
