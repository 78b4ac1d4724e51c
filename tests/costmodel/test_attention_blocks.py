"""Attention in blocks: its seconds and permutes against those of the schedule, round by round."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from costmodel import (
    INTERFERENCE,
    AttentionWork,
    CollectiveModel,
    ComputeModel,
    Hops,
    group_for,
    parse_cluster,
)
from ir import ATTENTION, Node, TensorType

CLUSTER = parse_cluster("8xh100")
COMPUTE, COLLECTIVES = ComputeModel(CLUSTER), CollectiveModel(CLUSTER)
GROUP = group_for(CLUSTER, (8,), (0,))
TIMED = Path(__file__).parents[2] / "benchmarks" / "data" / "one_gpu_h200_kernels.csv"
WAYS = ("b", "g", "r", "t", "ring", "zigzag", "halo")


def work(
    way: str, length: int = 131072, *, op: str = ATTENTION[0], mask: str = "CAUSAL",
    window: int | None = None, batch: int = 1, biases: int = 0,
) -> AttentionWork:  # fmt: skip
    """A kernel of 32 heads of 128 over 8 key heads, split over 8 devices in a way.

    `biases` examples have a bias each; of 1, all have the same.
    """
    query, key = (TensorType((batch, length, n, 128), "bfloat16") for n in (32, 8))
    none, lse = TensorType((0,), "bfloat16"), TensorType((batch, 32, length), "float32")
    bias = TensorType((biases, 32, length, length), "bfloat16") if biases else none
    operands = (query, key, key, bias, *(none,) * 6)
    operands += (lse, query, query) if op == ATTENTION[1] else ()
    attrs = {
        "mask_type": mask, "layout": 0, "sliding_window_length": window,
        "variadic_args": (bool(biases), False), "dropout_rate": 0.0,
    }  # fmt: skip
    node = Node(op, tuple(range(len(operands))), (query,), tuple(attrs.items()), ())
    ways = {name: np.array([8.0 if name == way else 1.0]) for name in WAYS}
    return AttentionWork(node, operands, ways)


def hops(*, overlap: bool = True) -> Hops:
    return Hops(COLLECTIVES, (GROUP,), overlap)


def seconds(way: str, **options: object) -> float:
    return float(work(way, **options).seconds(COMPUTE)[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("op", ATTENTION)
def test_zigzag_is_balanced_and_the_plain_ring_is_not(op: str) -> None:
    even = seconds("g", op=op)
    assert seconds("ring", op=op) == pytest.approx(seconds("t", op=op), rel=0.02)
    assert seconds("ring", op=op) / even == pytest.approx((2 * 8 - 1) / 8, rel=0.15)
    assert seconds("zigzag", op=op) / even == pytest.approx(1.0, rel=0.15)


def test_without_a_mask_a_ring_is_balanced() -> None:
    even = seconds("t", mask="NO_MASK")
    assert seconds("ring", mask="NO_MASK") / even == pytest.approx(1.0, rel=0.15)


def played(way: str, op: str) -> float:
    """Seconds of permutes that no block hides, by going through the rounds."""
    one, at = work(way, op=op), hops()
    first, later = (float(x[0]) for x in one.blocks_s(COMPUTE))
    pair = 131072 // 8 * 8 * 256
    h, g = (float(at.seconds(np.array([pair * n]))[0]) for n in (2.0, 4.0))
    exposed = 0.0
    for r in range(8):
        block = first if r == 0 else later
        beside = h if r < 7 else 0.0  # the next block comes
        if op == ATTENTION[1]:
            beside += g if r > 0 else 0.0  # the gradients of the last one go
        exposed += max(beside - block, beside * (1.0 - 1.0 / INTERFERENCE))
    return exposed + (g if op == ATTENTION[1] else 0.0)


@pytest.mark.parametrize("op", ATTENTION)
def test_what_a_ring_does_not_hide_is_that_of_its_rounds(op: str) -> None:
    found = work("ring", op=op).exchange(COMPUTE, hops())
    assert float(found.exposed_s[0]) == pytest.approx(played("ring", op))
    assert 0.0 < found.exposed_s[0] < found.seconds[0]


@pytest.mark.parametrize("way", ["ring", "zigzag", "halo"])
@pytest.mark.parametrize("op", ATTENTION)
def test_all_is_exposed_where_nothing_overlaps(way: str, op: str) -> None:
    window = 1024 if way == "halo" else None
    found = work(way, op=op, window=window).exchange(COMPUTE, hops(overlap=False))
    np.testing.assert_allclose(found.exposed_s, found.seconds)
    assert found.seconds[0] > 0.0


def test_short_blocks_do_not_hide_their_hops() -> None:
    across = Hops(COLLECTIVES, (group_for(parse_cluster("64xh100"), (8, 8), (0,)),), overlap=True)
    long = work("ring").exchange(COMPUTE, hops())
    short = work("ring", 2048).exchange(COMPUTE, across)  # its devices are on 8 hosts
    shares = [float(x.exposed_s[0] / x.seconds[0]) for x in (long, short)]
    assert shares[0] < 0.12
    assert shares[1] > 0.2


def test_heads_and_gathered_keys_have_no_permutes() -> None:
    for way in ("b", "g", "t"):
        found = work(way).exchange(COMPUTE, hops())
        assert found.seconds[0] == found.exposed_s[0] == found.sent_bytes[0] == 0.0


def test_a_bias_that_examples_share_is_read_by_each() -> None:
    for way in ("b", "g"):
        own, shared = (work(way, 2048, batch=16, biases=n) for n in (16, 1))
        assert float(shared.bias_of_all[0]) == pytest.approx(float(own.bias[0]))
        assert float(own.bias_of_all[0]) == pytest.approx(float(own.bias[0]))
    assert work("b", 2048, batch=16).bias_of_all == 0.0


def test_a_window_costs_its_own_pairs() -> None:
    even, split = seconds("g", window=1024), seconds("halo", window=1024)
    assert even < split < 1.5 * even
    assert split < seconds("zigzag") / 10


@pytest.mark.parametrize("op", ATTENTION)
def test_a_ring_holds_two_blocks_and_sums(op: str) -> None:
    gathered, ring, zigzag = (
        float(work(way, op=op).scratch_bytes()[0]) for way in ("t", "ring", "zigzag")
    )
    block = 131072 // 8 * 8 * 256 * 2
    assert ring - gathered == (block if op == ATTENTION[0] else 3 * block)
    assert zigzag > ring
    assert work("g", op=op).scratch_bytes()[0] == 0.0


@pytest.mark.parametrize("queries", [0, 1, 64])
def test_a_causal_kernel_of_few_queries_sees_few_keys(queries: int) -> None:
    """Query t sees keys up to t: all keys but the first ones change nothing but what is read."""

    def priced(keys: int) -> float:
        query = TensorType((1, queries, 1, 128), "bfloat16")
        key, none = TensorType((1, keys, 1, 128), "bfloat16"), TensorType((0,), "bfloat16")
        operands = (query, key, key, *(none,) * 7)
        attrs = {
            "mask_type": "CAUSAL", "layout": 0, "sliding_window_length": None,
            "variadic_args": (False, False), "dropout_rate": 0.0,
        }  # fmt: skip
        node = Node(ATTENTION[0], tuple(range(10)), (query,), tuple(attrs.items()), ())
        ways = {name: np.array([1.0]) for name in WAYS}
        return float(AttentionWork(node, operands, ways).seconds(COMPUTE)[0])

    assert 0.0 < priced(8192) < 1.5 * priced(max(queries, 1))


def test_kernels_with_a_bias_are_priced_as_timed() -> None:
    timed: dict[tuple[str, str], float] = {}
    with TIMED.open(newline="") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            timed[row["op"], row["sizes"]] = 1e-6 * float(row["kernel_us"])
    h200 = ComputeModel(parse_cluster("1xh200"))
    errors: list[float] = []
    for (op, sizes), seconds in timed.items():
        if not op.startswith("attention_bias"):
            continue
        b, s, h, _, d, _ = map(int, sizes.split("x"))
        query, bias = TensorType((b, s, h, d), "bfloat16"), TensorType((1, h, s, s), "bfloat16")
        none, lse = TensorType((0,), "bfloat16"), TensorType((b, h, s), "float32")
        total = 0.0
        for name in ATTENTION[: 2 if op.endswith("grad") else 1]:
            backward = name == ATTENTION[1]
            operands = (query, query, query, bias, *(none,) * 6)
            operands += (lse, query, query) if backward else ()
            attrs = {
                "mask_type": "CAUSAL", "layout": 0, "sliding_window_length": None,
                "variadic_args": (True, backward), "dropout_rate": 0.0,
            }  # fmt: skip
            node = Node(name, tuple(range(len(operands))), (query,), tuple(attrs.items()), ())
            ways = {way: np.array([1.0]) for way in WAYS}
            total += float(AttentionWork(node, operands, ways).seconds(h200)[0])
        errors.append(total / seconds - 1.0)
    assert len(errors) == 8
    assert max(map(abs, errors)) < 0.2, errors
