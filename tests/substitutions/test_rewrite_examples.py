# pyright: basic
"""Every rule at every kind of place in the examples: what comes out is a program."""

from __future__ import annotations

import pytest

from ir import check
from ir.trace import trace
from planner.cli.target import load_target
from planner.sharding.rewrite.retrace import retraced
from substitutions import apply, draft_of, find, patterns

OFTEN = ("lstm:small",)
OTHERS = (
    "gpt:small", "gpt:small_scanned", "llama:small", "moe:small", "recommender:small",
    "unet:small", "vit:small", "wide_resnet:small",
)  # fmt: skip


@pytest.mark.parametrize("name", OFTEN)
def test_every_place_in_an_example_can_be_rewritten(name: str) -> None:
    rewrite_everywhere(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", OTHERS)
def test_every_place_in_other_examples_can_be_rewritten(name: str) -> None:
    rewrite_everywhere(name)


def rewrite_everywhere(name: str) -> None:
    """Applies every rule at every kind of place of one example."""
    file, _, target = name.partition(":")
    loaded = load_target(f"examples/{file}.py:{target}")
    traced = trace(loaded.fn, *loaded.args)
    draft = draft_of(traced.graph)
    kinds = {}
    for place in find(draft, patterns()):
        kinds.setdefault((place.kind, len(place.prefix)), []).append(place)
    assert kinds
    last = None
    for members in kinds.values():
        after, count = apply(draft, members)
        if count:
            check(after.graph, after=members[0].rule)
            last = after
    if last is not None:
        retraced(traced, last)
