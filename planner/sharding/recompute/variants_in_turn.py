"""Variants of a program in the order in which they are looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from ir import digest
from ir.trace import Traced

from .choices import choices
from .frontier import SecondsOf
from .saved import Layer
from .variants import Rows, Variant, hosted_variants, variant_of


@dataclass(frozen=True)
class VariantsInTurn:
    """Variants, grouped by what they compute again: without values on the host, then with some.

    groups: the variants of each choice of what is computed again.
    hosted_if_short: whether a choice that was settled needs no variants with values on the host.
    """

    groups: Iterable[Iterable[Variant]]
    hosted_if_short: bool
    _settled: set[Rows | None] = field(default_factory=set["Rows | None"])

    def settle(self, variant: Variant) -> None:
        """Notes that a choice fits, or is too slow wherever its values are."""
        self._settled.add(variant.rows)

    def __iter__(self) -> Iterator[Variant]:
        for group in self.groups:
            for variant in group:
                yield variant
                if self.hosted_if_short and variant.rows in self._settled:
                    break


def in_turn(
    kept: Traced,
    layers: Sequence[Layer],
    seconds_of: Callable[[Traced], SecondsOf],
    without: Sequence[Traced],
    copy_s: Callable[[float], float] | None,
    *,
    few_first: bool,
) -> VariantsInTurn:
    """Distinct variants.

    Where values may wait on the host, each choice is looked at as well with as much there as its
    copies have compute beside them; the first and the last choice also with all that may. Where all
    layers are written out, that is done for choices alone that do not fit without.

    Args:
        kept: the program that keeps everything.
        layers: its bodies with a forward pass.
        seconds_of: seconds of the nodes of a program.
        without: programs that have been planned.
        copy_s: seconds of copying an amount of all devices together to the host [byte]; None if
            nothing may go there.
        few_first: those that compute least again come first, else last: where memory is short,
            these take longest to plan, least if a faster plan is known.
    """
    seen = {digest(one.graph) for one in without}

    def distinct(variants: Iterable[Variant]) -> Iterator[Variant]:
        for one in variants:
            name = digest(one.traced.graph)
            if name not in seen:
                seen.add(name)
                yield one

    def groups() -> Iterator[Iterable[Variant]]:
        found = choices(layers, seconds_of(kept))
        ends = found[0], found[-1]
        for values in found if few_first else found[::-1]:
            variant = variant_of(kept, values)
            more = iter(()) if copy_s is None else hosted_variants(variant, seconds_of, copy_s)
            yield distinct(chain((variant,), islice(more, None if values in ends else 1)))

    return VariantsInTurn(groups(), hosted_if_short=not any(layer.loop for layer in layers))
