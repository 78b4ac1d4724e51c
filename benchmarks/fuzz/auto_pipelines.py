# pyright: basic
"""Random training steps planned with pipeline="auto": equal to the step as written, or one program.

The network between hosts is so slow that many plans are pipelines. A loss that micro-batches can
compute must not be kept from stages, and what is refused must be a loss that they cannot.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from msgspec import structs

from costmodel import Cluster
from planner import NotAProgramError, PlanError, plan
from planner.pipeline.schedule.registry import PIPELINES, TURNS
from tests.planner.programs import slow_machine

from .training import OPTIMIZERS, Outcome, difference_of, run_steps, whole_step
from .training_losses import HEADS, NORMS, arguments, random_loss

DEVICES = 4
HOSTS = (1, 2)  # devices of a host
RATES = (1e8, 1e9, 1e10)  # of devices [flop/s]
# What decides whether stages win: flops of a device while its memory moves a byte, while the
# network does, and while a message begins.
FLOPS_PER_BYTE, FLOPS_PER_SENT_BYTE, FLOPS_PER_MESSAGE = (0.1, 1.0), (5.0, 15.0, 40.0), (0.0, 1e3)
WIDTHS = (8, 12, 16)  # gradients have more bytes than what stages send each other
NO_PIPELINE = "no pipeline was looked at: "


def random_machine(draw: np.random.Generator) -> Cluster:
    """Four devices in hosts with slow links between them."""
    base, host, rate = slow_machine(DEVICES), int(draw.choice(HOSTS)), float(draw.choice(RATES))
    device = structs.replace(
        base.device, peak_flops=(("float32", rate),),
        memory_bandwidth_bytes_per_s=rate / float(draw.choice(FLOPS_PER_BYTE)),
    )  # fmt: skip
    network = structs.replace(
        base.network, bandwidth_bytes_per_s=rate / float(draw.choice(FLOPS_PER_SENT_BYTE)),
        latency_s=float(draw.choice(FLOPS_PER_MESSAGE)) / rate,
    )  # fmt: skip
    return replace(base, devices_per_host=host, domain=host, device=device, network=network)


def tried_in_stages(seed: int) -> Outcome:
    """Plans and runs a random step, and the step as anyone would write it."""
    draw = np.random.default_rng(seed)
    batch = int(draw.choice([4, 6, 8, 12]))
    params, data = arguments(draw, batch, int(draw.integers(3, 6)), WIDTHS, 2)
    has_aux = bool(draw.random() < 0.25)
    norm, head = str(draw.choice(list(NORMS))), str(draw.choice(list(HEADS)))
    loss, what, whole_only = random_loss(draw, has_aux, norm, head)
    name = str(draw.choice(list(OPTIMIZERS)))
    machine, optimizer = random_machine(draw), OPTIMIZERS[name]()
    asked = dict[str, Any]()
    if draw.random() < 0.5:
        asked["microbatches"] = int(draw.choice([m for m in (2, 4) if batch % m == 0]))
    if draw.random() < 0.5:
        schedule = str(draw.choice([*PIPELINES]))
        asked["schedules"] = ("1f1b", schedule) if schedule in TURNS else (schedule,)
    what = f"{what}, {name}, {batch} examples, hosts of {machine.devices_per_host}, {asked}"
    try:
        made = plan(
            loss, params, data, optimizer=optimizer, cluster=machine, has_aux=has_aux,
            pipeline="auto", baselines=False, substitutions=False, **asked,
        )  # fmt: skip
        refused = next((w for w in made.warnings if w.startswith(NO_PIPELINE)), "")
        if refused and not whole_only:
            return Outcome(what, wrong=f"seed {seed}: {what}: {refused}")
        if not made.lower_bound_s > 0:  # left out where the step is below it
            return Outcome(what, wrong=f"seed {seed}: {what}: the bound is above the step")
        step = made.compile()
    except PlanError as error:
        defect = isinstance(error, NotAProgramError) or not error.where.startswith("loss_fn")
        each_alone = asked.get("microbatches") == batch  # ops may differ in parts of one example
        if asked.get("microbatches") and (whole_only or each_alone) and not defect:
            return Outcome(what, refused=str(error))
        return Outcome(what, wrong=f"seed {seed}: {what}: refused: {error}")
    except Exception as error:
        return Outcome(what, wrong=f"seed {seed}: {what}: {type(error).__name__}: {error}")
    form = f"{len(made.stages)} stages" if len(made.stages) > 1 else "one program"
    whole = whole_step(loss, optimizer, has_aux)
    expected = run_steps(jax.jit(whole), params, optimizer.init(params), data)
    try:
        found = run_steps(step, params, optimizer.init(params), data)
    except Exception as error:
        return Outcome(what, wrong=f"seed {seed}: {what}: {type(error).__name__}: {error}")
    wrong = difference_of(found, expected)
    return Outcome(
        f"{form}: {what}", refused=refused, wrong=f"seed {seed}: {what}: {wrong}" if wrong else ""
    )
