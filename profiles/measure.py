# pyright: basic
"""Times operations and collectives on the devices present; a door to JAX.

Every timing is taken with all devices busy at once, each on data of its own: CPU devices share the
cores of one machine, so that a product takes longer the more of them run. A body is repeated in a
loop on the device, whose length is an argument; what starting the program takes is measured with
no iteration and subtracted.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from .database import Sample, cores, machine_name
from .errors import ProfileError
from .measure_cases import (
    Case,
    Row,
    collective_cases,
    lasting_product,
    local_cases,
    passing_cases,
)
from .schema import (
    CollectiveRow,
    CollectiveTable,
    Device,
    GemmRow,
    GemmTable,
    Link,
    OpRow,
    OpTable,
    Profile,
    convert,
)

Say = Callable[[str], None]
Clock = Callable[[], float]

RUN_S = 5e-3  # a run repeats its body until it takes at least so long
LONGEST = 1 << 16  # iterations
# Bodies in an iteration on accelerators, which the host starts: on an H100 an iteration takes 10 us
# more than a kernel of 2 us (`loop_small` in benchmarks/data/one_gpu_h100_kernels.csv).
BODIES = 16
PROCESSOR_TIME = "processor time over cores"
# Runs of one case: so many, or fewer (but three) when they take so long.
RUNS = {"quick": (7, 0.4), "full": (15, 2.0)}
# Seconds of one product over and over, of which the second half counts: on an H200 of 700 W the
# clock has fallen from 1,980 to 1,480 MHz by then (`profiles/data/LICENSES.md`).
WARM_S = 2.0
CALLS = 4  # of a program that goes over its arrays once, in a run
PAGE = "SC_PAGE_SIZE"
# Of an array that the C library takes from the system and gives back each time: more than the
# 32 MiB that it keeps for itself at most (mallopt(3), M_MMAP_THRESHOLD).
FRESH_BYTES = 48 << 20


@dataclass(frozen=True)
class Measured:
    """What a run found: a profile and every timing behind it."""

    profile: Profile
    devices: int
    samples: tuple[Sample, ...]


def present(device: str, at_most: int = 8) -> list[Any]:
    """The devices to measure.

    Args:
        device: `host` for CPU devices, `gpu` for accelerators.
        at_most: CPU devices to make, where JAX has not made its devices yet.

    Raises:
        ProfileError: if there are none.
    """
    try:
        if device == "host":
            jax.config.update("jax_platforms", "cpu")
            if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
                # once JAX has made its devices there are as many as there are
                with contextlib.suppress(RuntimeError):
                    jax.config.update("jax_num_cpu_devices", at_most)
            return jax.devices("cpu")[:at_most]
        return jax.devices("gpu")
    except (RuntimeError, AssertionError) as error:
        reason = " ".join(str(error).split())
        raise ProfileError(
            f"JAX finds no {device}: {reason}", where="--device",
            remedy="install JAX for this accelerator, or measure the CPU with --device host",
        ) from error  # fmt: skip


def profile_name(devices: list[Any]) -> str:
    """Name under which these devices are kept: `host`, or the kind in small letters."""
    if devices[0].platform == "cpu":
        return "host"
    return "-".join(re.findall(r"[a-z0-9]+", devices[0].device_kind.lower()))


def measure(
    name: str,
    base: Profile,
    devices: list[Any],
    *,
    quick: bool = False,
    shared: bool = False,
    say: Say = lambda _: None,
) -> Measured:
    """Measures the devices given, all busy at once.

    Args:
        name: of the profile.
        base: figures that are not measured: network, and links where there is one device.
        devices: of one kind, on this host.
        quick: fewer sizes and repeats.
        shared: others use the machine: count processor seconds over its cores, which leave out
            what others take, and leave out waiting too.
        say: is told what is being timed.
    """
    samples: list[Sample] = []
    rows: list[Row] = []
    accelerator = devices[0].platform != "cpu"
    cases = [*local_cases(quick, accelerator=accelerator), *collective_cases(len(devices), quick)]
    if not accelerator:
        cases = [*(c for c in cases if c.op != "copy"), *passing_cases()]
    for i, case in enumerate(cases, start=1):
        say(f"{len(devices)} devices, {i} of {len(cases)}: {case.op} {case.sizes}")
        times = _times(case, devices, wall_s if not shared else cores_s,
                       *RUNS["quick" if quick else "full"])  # fmt: skip
        low, middle, high = _quartiles(times)
        samples.append(Sample(case.op, case.dtype, case.sizes, middle, low, high, len(times)))
        # Whatever else runs on the machine only ever adds time: the table takes the first quartile.
        rows.append(case.row(low))
    profile = _profile(name, base, devices, rows, PROCESSOR_TIME if shared else "wall time")
    if accelerator:
        device = msgspec.structs.replace(profile.device, sustained_flops=_sustained(rows, devices))
    else:
        rate = _fresh_bytes_per_s(profile.device, devices, cores_s if shared else wall_s)
        device = msgspec.structs.replace(profile.device, fresh_bytes_per_s=rate)
    profile = msgspec.structs.replace(profile, device=device)
    return Measured(profile, len(devices), tuple(samples))


def _quartiles(times: list[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return low, middle, high


def wall_s() -> float:
    """The clock on the wall."""
    return time.perf_counter()


def cores_s() -> float:
    """Processor seconds of this process so far, over the cores it may use."""
    return time.process_time() / cores()


def _times(
    case: Case, devices: list[Any], clock: Clock, repeats: int, within_s: float
) -> list[float]:
    """Seconds of the body alone, once per run."""
    if case.passes:
        return _passing(case, devices, clock, repeats)
    bodies = 1 if devices[0].platform == "cpu" else BODIES
    program = _program(case, devices, bodies)

    def took(length: int) -> float:
        begun = clock()
        program(length)
        return clock() - begun

    took(1)  # compiles
    start = statistics.median(took(0) for _ in range(5))
    length, taken = 1, took(1)
    while taken < start + RUN_S and length < LONGEST:
        length *= 4
        taken = took(length)
    found: list[float] = []
    begun = time.perf_counter()
    while len(found) < repeats:
        whole = took(length)
        # A start that took longer than a whole run was disturbed: then it is not subtracted.
        found.append((whole - start if whole > start else whole) / (length * bodies))
        if len(found) >= 3 and time.perf_counter() - begun > within_s:
            break
    return found


def _sustained(rows: list[Row], devices: list[Any]) -> tuple[tuple[str, float], ...]:
    """FLOP/s of the largest product of each 16-bit type, warm; none where its best is no higher."""
    found: list[tuple[str, float]] = []
    for dtype in ("bfloat16", "float16"):
        timed = [
            (2.0 * r.batch * r.m * r.n * r.k, r)
            for r in rows if isinstance(r, GemmRow) and r.dtype == dtype
        ]  # fmt: skip
        if not timed:
            continue
        flops, row = max(timed, key=lambda item: item[0])
        program, times = _program(lasting_product(row), devices, BODIES), list[float]()
        program(1)  # compiles
        begun = time.perf_counter()
        program(1)
        length = max(1, round(WARM_S / 10 / (time.perf_counter() - begun)))
        begun = time.perf_counter()
        while len(times) < 3 or time.perf_counter() - begun < WARM_S:
            start = time.perf_counter()
            program(length)
            times.append((time.perf_counter() - start) / (length * BODIES))
        rate = flops / statistics.median(times[len(times) // 2 :])
        if rate < max(work / r.seconds for work, r in timed):
            found.append((dtype, rate))
    return tuple(found)


def _passing(case: Case, devices: list[Any], clock: Clock, repeats: int) -> list[float]:
    """Seconds of one array, by a program that goes over many; calling it is not counted."""
    mesh = Mesh(np.array(devices), ("d",))
    body = jax.vmap(case.body)
    mapped = jax.shard_map(
        lambda arrays: [body(a) for a in arrays], mesh=mesh, in_specs=P("d"), out_specs=P("d")
    )
    program = jax.jit(mapped)

    def took(shape: tuple[int, ...]) -> Callable[[], float]:
        array = np.full((len(devices), *shape), 0.5, np.float32)
        arrays = [jax.device_put(array, NamedSharding(mesh, P("d"))) for _ in range(case.passes)]
        # A result is held until the next is there, as weights are: what is given back first may go
        # back to the system, and taking it anew is timed apart.
        held = [program(arrays)]

        def run() -> float:
            begun = clock()
            for _ in range(CALLS):
                held[0] = jax.block_until_ready(program(arrays))
            return (clock() - begun) / CALLS

        run()
        return run

    real, empty = took(case.shapes[0]), took((1, 1))
    return [max(real() - empty(), 0.0) / case.passes or empty() for _ in range(repeats)]


def _program(case: Case, devices: list[Any], bodies: int) -> Callable[[int], jax.Array]:
    outer, inner = case.groups or (1, len(devices))
    mesh = Mesh(np.array(devices).reshape(outer, inner), ("o", "i"))
    split = P(("o", "i"))

    def local(length: jax.Array, *arrays: jax.Array) -> jax.Array:
        first, *rest = (a[0] for a in arrays)

        def once(x: jax.Array) -> jax.Array:
            y = case.body(x, *rest)
            # The next iteration waits for a value of this one, at the cost of one element; a body
            # from an array to one of its shape is its own chain.
            if y.shape == x.shape and y.dtype == x.dtype:
                return y
            kept = (0 * y[(0,) * y.ndim]).astype(x.dtype)
            return x.at[(0,) * x.ndim].add(kept)

        def body(_: Any, x: jax.Array) -> jax.Array:
            for _ in range(bodies - 1):
                x = lax.optimization_barrier(once(x))  # no fusion has two of them
            return once(x)

        return lax.fori_loop(0, length, body, first)[None]

    arrays = tuple(_array(case, position, mesh, split) for position in range(len(case.shapes)))
    specs = (P(), *(split for _ in arrays))
    mapped = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)
    compiled = jax.jit(mapped)

    def run(length: int) -> jax.Array:
        return compiled(np.int32(length), *arrays).block_until_ready()

    return run


def _array(case: Case, position: int, mesh: Mesh, split: P) -> jax.Array:
    count = mesh.size
    shape = (count, *case.shapes[position])
    rng = np.random.default_rng(position)
    if case.indices and position == len(case.shapes) - 1:
        data: Any = rng.integers(0, case.indices, shape, dtype=np.int32)
    else:
        drawn = rng.standard_normal(shape) if case.centred else rng.uniform(0.1, 0.9, shape)
        data = drawn.astype(np.float32)
        data = data if case.dtype == "float32" else jnp.asarray(data, case.dtype)
    return jax.device_put(data, NamedSharding(mesh, split))


def _fresh_bytes_per_s(device: Device, devices: list[Any], clock: Clock) -> float | None:
    """How fast each device fills a result that is a new array every time, copying aside."""
    sharding = NamedSharding(Mesh(np.array(devices), ("d",)), P("d"))
    zeros = np.zeros((len(devices), FRESH_BYTES // 4), np.float32)
    array, program = jax.device_put(zeros, sharding), jax.jit(lambda x: x + 1.0)
    program(array).block_until_ready()
    times: list[float] = []
    for _ in range(7):
        begun = clock()
        program(array).block_until_ready()
        times.append(clock() - begun)
    copying_s = 2 * FRESH_BYTES / device.memory_bandwidth_bytes_per_s
    waiting_s = _quartiles(times)[0] - copying_s
    return FRESH_BYTES / waiting_s if waiting_s > 0 else None


def _profile(name: str, base: Profile, devices: list[Any], rows: list[Row], clock: str) -> Profile:
    """A profile of the rows, its device and link figures taken from the best of them."""
    count, today = len(devices), datetime.date.today().isoformat()
    source = (
        f"`meshwright profile` on {machine_name()}: {devices[0].device_kind}, {count} devices at "
        f"once, {clock}, JAX {jax.__version__}"
    )
    table = {"name": f"{name} {count}", "source": source, "date": today, "licence": "own"}
    products = tuple(r for r in rows if isinstance(r, GemmRow))
    ops = tuple(r for r in rows if isinstance(r, OpRow))
    shared = tuple(r for r in rows if isinstance(r, CollectiveRow))
    copies = [r for r in ops if r.op == "copy"]
    rates = {
        dtype: max(
            2.0 * r.batch * r.m * r.n * r.k / r.seconds for r in products if r.dtype == dtype
        )
        for dtype in sorted({r.dtype for r in products})
    }
    device = Device(
        name=name,
        memory_bytes=_memory_bytes(devices, base),
        memory_bandwidth_bytes_per_s=copies[-1].moved_bytes / copies[-1].seconds,
        peak_flops=tuple(sorted(rates.items())),
        kernel_launch_s=min(r.seconds for r in products),
        source=source,
        date=today,
        evidence="measured",
    )
    profile = Profile(
        name=name,
        device=device,
        devices_per_host=count,
        domain=count,
        intra_host=_link(base.intra_host, shared, count, source, today),
        network=base.network,
        collectives=CollectiveTable(**table, rows=shared) if shared else None,
        gemm=GemmTable(**table, rows=products),
        ops=OpTable(**table, rows=ops),
    )
    return convert(msgspec.to_builtins(profile), Profile, where=f"measurement of {name}")


def _link(base: Link, rows: tuple[CollectiveRow, ...], count: int, source: str, today: str) -> Link:
    gathers = [r for r in rows if r.kind == "all-gather" and r.group_size == count]
    if not gathers:
        return base
    largest = max(gathers, key=lambda r: r.full_bytes)
    sent = (count - 1) / count * largest.full_bytes
    return Link(
        name=base.name,
        latency_s=min(r.seconds for r in gathers),
        bandwidth_bytes_per_s=sent / largest.seconds,
        source=source,
        date=today,
    )


def _memory_bytes(devices: list[Any], base: Profile) -> int:
    """Memory that one device may use: of a GPU what its allocator may take, of the host a share."""
    if devices[0].platform != "cpu":
        limit = (devices[0].memory_stats() or {}).get("bytes_limit")
        return int(limit or base.device.memory_bytes)
    if hasattr(os, "sysconf") and PAGE in os.sysconf_names:
        return int(os.sysconf(PAGE) * os.sysconf("SC_PHYS_PAGES") // len(devices))
    return base.device.memory_bytes
