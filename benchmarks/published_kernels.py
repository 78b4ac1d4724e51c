"""What frameworks do beside, or in place of, the operations of a JAX program of the same step.

Products of gradients of Megatron-LM add to the sums of the micro-batches themselves
(`gradient_accumulation_fusion`, its default and that of Megatron-Bridge). A product that leaves 32
bits takes no longer than one that leaves 16 (`gemm_wide` in
`benchmarks/data/one_gpu_h100_kernels.csv`), so that the sum takes no time beside it. Transformer
Engine casts a weight to float8 once a step, in its first micro-batch (`is_first_microbatch`); of
many micro-batches that is little and is left out. Neither holds where parameters are fully sharded:
the sum is that of shards, and weights are gathered anew.

Source: megatron/training/arguments.py and megatron/core/extensions/transformer_engine.py of
NVIDIA/Megatron-LM.

PyTorch's fully sharded training copies whole gradients and weights beside its collectives, in
every micro-batch. Of each parameter, with gradients that are reduced in 32 bits:

    FSDP (MosaicML's rows)      put together (2 + 2 bytes), widened (2 + 4), divided (4 + 4)
    FSDP2 (torchtitan's rows)   widened into the order of ranks (2 + 4); gathered weights are copied
                                out of the buffer that was gathered, twice (2 + 2)

Source: torch/distributed/fsdp/_runtime_utils.py (`_post_backward_hook`) and _flat_param.py of
pytorch/pytorch; torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set as AbstractSet
from dataclasses import replace

from costmodel.compiler import Traffic
from costmodel.opcost import VIEWS
from ir.analysis import FlatProgram, accumulators

CAST = "convert_element_type"
COPIED_BYTES = {"MosaicML": 18.0, "torchtitan": 14.0}  # for each parameter and micro-batch
SUMMED_IN_PRODUCTS = ("Korthikanti", "MLPerf", "Megatron-Bridge", "Megatron-LM README", "NeMo")


def in_kernels(flat: FlatProgram, traffic: Traffic, parameters: AbstractSet[int]) -> Traffic:
    """The traffic of a step without that of sums in products and of casts of weights to float8.

    Args:
        flat: the step.
        traffic: of all its operations.
        parameters: its arguments that are weights.
    """
    made_of = _Origins(flat)
    gone: set[int] = set()
    ports = set(accumulators(flat))
    for i, op in enumerate(flat.ops):
        if op.node.op in ("add", "add_any") and ports & set(op.reads):
            term = next((v for v in op.reads if v not in ports), None)
            if term is not None and made_of.product(term):
                gone |= {i, *made_of.casts(term)}
        narrow = op.node.op == CAST and op.node.outputs[0].dtype.startswith("float8")
        if narrow and made_of.ends(op.reads[0])[0] in parameters:
            gone.add(i)
    return replace(
        traffic,
        reads=tuple(() if i in gone else r for i, r in enumerate(traffic.reads)),
        writes=tuple(() if i in gone else w for i, w in enumerate(traffic.writes)),
        launches=tuple(0 if i in gone else n for i, n in enumerate(traffic.launches)),
    )


def with_copies(flat: FlatProgram, traffic: Traffic, copied_bytes: float) -> Traffic:
    """The traffic of a step with copies of whole gradients, and without those that loops make.

    Args:
        flat: the step; products of gradients, and no others, leave 32 bits.
        traffic: of all its operations.
        copied_bytes: read and written for each number of a gradient.
    """
    times = copied_bytes / 4.0
    gradients = {
        i: (("result", 0, times),)
        for i, op in enumerate(flat.ops)
        if op.node.op == "dot_general" and op.node.outputs[0].dtype == "float32"
    }
    return replace(traffic, moved=gradients)


class _Origins:
    """What values are made of, through casts, views, stacks of loops and their slices."""

    def __init__(self, flat: FlatProgram) -> None:
        self.flat = flat
        self.sources: dict[int, list[int]] = defaultdict(list)
        for link in flat.links:
            self.sources[link.target].append(link.source)

    def ends(self, v: int) -> tuple[int, list[int]]:
        """The first value on the way back that something else makes, and the casts on the way."""
        casts: list[int] = []
        while True:
            made = self.flat.maker.get(v)
            if made is not None:
                op = self.flat.ops[made[0]]
                if op.node.op not in (*VIEWS, CAST) or not op.reads:
                    return v, casts
                casts += [made[0]] if op.node.op == CAST else []
                v = op.reads[0]
            elif v in self.flat.stacked:
                v = self.flat.stacked[v]
            elif len(self.sources[v]) == 1:
                v = self.sources[v][0]
            else:
                return v, casts

    def product(self, v: int) -> bool:
        """Whether a value is the result of a product."""
        made = self.flat.maker.get(self.ends(v)[0])
        return made is not None and self.flat.ops[made[0]].node.op == "dot_general"

    def casts(self, v: int) -> list[int]:
        """Casts between a value and what it is made of."""
        return self.ends(v)[1]
