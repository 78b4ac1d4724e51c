# pyright: basic
"""Least bytes of stages, from those of the runs between their places."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from costmodel import Cluster
from planner.common.options import Options
from planner.common.request import Request
from planner.pipeline.cut.opened_loss import cut_of
from planner.pipeline.divide.simulated import PipelineShape
from planner.pipeline.search import PipelineSearch
from planner.pipeline.stage_planner import StageError
from planner.training.training import Training
from tests.planner.programs import linked, slow_machine

Shape = jax.ShapeDtypeStruct


def _block(x: jax.Array, w: Any) -> jax.Array:
    """Attention and two products, with values that fusions keep to themselves."""
    y = x - x.mean(-1, keepdims=True)
    scores = jax.nn.softmax(jnp.einsum("bqm,bkm->bqk", y @ w[0], y), -1)
    x = x + jnp.einsum("bqk,bkm->bqm", scores, y)
    z = jax.nn.gelu(x @ w[0])
    return x + (z * jax.nn.sigmoid(z)) @ w[1]


def written_out(params: Any, batch: Any) -> jax.Array:
    """Layers one after the other, which share a mask of the batch, and a tied embedding."""
    x = params["in"][batch["x"]]
    mask = (batch["x"] > 2)[..., None]
    for w in params["layers"]:
        x = jnp.where(mask, _block(x, w), x)
    scores = jnp.einsum("bsm,vm->bsv", x, params["in"])
    return jnp.mean(jax.nn.logsumexp(scores, -1))


def looped(params: Any, batch: Any) -> jax.Array:
    """Layers in a loop, whose rounds leave stacks."""
    x, _ = jax.lax.scan(lambda x, w: (_block(x, w), None), batch["x"], params["layers"])
    return jnp.mean(jnp.square(x @ params["out"]))


def search_of(
    loss: Any, memory_bytes: int | None = None, machine: Cluster | None = None, **more: Any
) -> PipelineSearch:
    pair = Shape((16, 16), jnp.float32), Shape((16, 16), jnp.float32)
    if loss is looped:
        stacks = tuple(Shape((4, *each.shape), each.dtype) for each in pair)
        params = {"layers": stacks, "out": Shape((16, 32), jnp.float32)}
        batch = {"x": Shape((8, 4, 16), jnp.float32)}
    else:
        params = {"in": Shape((32, 16), jnp.float32), "layers": [pair] * 3}
        batch = {"x": Shape((8, 4), jnp.int32)}
    training = Training(loss, (params, batch), optax.adam(1e-3), False, 0, "blocks")
    options = Options(loss_reduction="mean", baselines=False, memory_bytes=memory_bytes, **more)
    return PipelineSearch(training, Request(machine or slow_machine(4), options))


@pytest.mark.parametrize(("loss", "share"), [(written_out, 0.3), (looped, 0.5)])
def test_a_stage_needs_no_less_than_its_runs_say(loss: Any, share: float) -> None:
    """Beside all buffers of the stage itself at its fullest moment, and all that it saves."""
    search = search_of(loss)
    floors, last = search.floors, search.shares.count - 1
    shares = list[float]()
    for kind in floors.kinds:
        found = floors.of_kind(2, 2, kind, 1, 1)[0]
        for run in [*combinations(range(last + 1), 2)][:: (last + 2)]:
            _, stage, name = floors._alone(2, run, kind)
            facts = search.planner.searched(stage, name).facts
            names = facts.flat.names
            saved = (names.get(((stage.loop, 0), v)) for v in stage.program.parts.saved)
            flying = sum(facts.flat.values[v].type.nbytes for v in saved if v is not None)
            for flight in (1, 3):
                least = found.needed_bytes(flight)[run]
                peak = facts.least_peak(1) + (flight - 1) * flying
                assert least <= peak * (1 + 1e-9), (kind, run, flight)
                shares.append(least / peak)
    assert max(shares) > share


@pytest.mark.parametrize("loss", [written_out, looped])
def test_what_layers_save_may_wait_on_the_host(loss: Any) -> None:
    """Of one micro-batch and of all in flight, unless that is forbidden."""

    def bytes_of(**settings: Any) -> list[np.ndarray]:
        floors = search_of(loss, **settings).proof.of_all(math.inf).floors
        own = floors.of_kind(2, 2, "none", 1, 1)[0]
        return [own.needed_bytes(flight) for flight in (1, 3)]

    here, link = bytes_of(), linked(slow_machine(4))
    away, never = bytes_of(machine=link), bytes_of(machine=link, offload="never")
    for one, two, three in zip(here, away, never, strict=True):
        np.testing.assert_array_equal(one, three)
        assert (two <= one).all()
        assert (two < one).any()
    np.testing.assert_array_equal(away[0], away[1])
    assert (here[0] < here[1]).any()


def test_kinds_that_do_not_fit_bound_no_stage() -> None:
    """Whatever is planned within a limit takes no less than the bounds of what may fit in it."""
    ample = search_of(written_out)
    whole = 0, ample.shares.count - 1
    rows = [ample.floors.of_kind(2, 2, kind, 1, 1)[0] for kind in ample.floors.kinds]
    needs = sorted(float(row.needed_bytes(1)[whole]) / 2 for row in rows)
    limit = int((needs[0] + needs[-1]) / 2)
    search = search_of(written_out, limit)
    floors, places = search.floors, search.shares.places
    free_s, bound_s = (float(each.least(2, 2).step_s[whole]) for each in (ample.floors, floors))
    assert bound_s > free_s
    loss = search.planner.loss(2)
    for kind in ("none", "selective", "full"):
        cuts = (0, places[-1])
        shape = PipelineShape(cuts, (2,), 2, (kind,))
        found = search.planner.stage(cut_of(loss, cuts, (kind,)), shape, 0, 1)
        fits = bool(floors.of_kind(2, 2, kind, 1, 1)[1][whole])
        assert fits or isinstance(found, StageError)
        if not isinstance(found, StageError):
            price = found[1]
            assert 2 * price.microbatch_s + price.once_s >= bound_s * (1 - 1e-9)
    none = search_of(written_out, 100).floors.least(2, 2)
    assert none.step_s[whole] == float("inf")


def test_products_of_a_tied_head_count_in_its_gradients() -> None:
    """Beside the plan of the stage that has both of the layers that read the parameter."""
    search = search_of(written_out)
    floors, last = search.floors, search.shares.count - 1
    least = floors.least(2, 1)
    head = max(k for k in range(last) if least.begun_s[k, k + 1] > 0)
    assert least.back_s[head, head + 1] > 0.5 * least.begun_s[head, head + 1]
    cuts = (0, search.shares.places[-1])
    shape = PipelineShape(cuts, (1,), 2, ("none",))
    found = search.planner.stage(cut_of(search.planner.loss(2), cuts), shape, 0, 1)
    assert not isinstance(found, StageError)
    assert found[1].microbatch_s >= least.micro_s[0, last] * (1 - 1e-9)
