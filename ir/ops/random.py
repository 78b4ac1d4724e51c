"""Random numbers and keys.

`random_bits` makes the same bits however its result is split only if each device knows its
place: emission makes the whole result's bits for the shard at hand, hence `offset`.
Key operands of rank above 0 are batches of independent streams.
"""

from __future__ import annotations

from ..factors import FactorSpec
from ..opdef import Attributes, OpDef, Types
from .build import as_whole, build_spec, names, opaque

_COUNTED = "key<fry>"  # the generator whose streams do not depend on how keys are batched
_WORD_OPS = 70  # some 20 rounds of three integer operations


def _bits(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    if operands[0].dtype != _COUNTED:
        return opaque(operands, results, attrs)
    keys = names("k", operands[0].rank)
    drawn = names("d", results[0].rank - len(keys))
    return build_spec(operands, [keys], results, [[*keys, *drawn]])


def _bits_local(operands: Types, results: Types, attrs: Attributes) -> Attributes:
    del attrs
    return {"shape": results[0].shape[operands[0].rank :]}


def _bits_flops(operands: Types, results: Types, attrs: Attributes) -> int:
    del operands, attrs
    return _WORD_OPS * results[0].size


def _by_key(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    """Each key by itself: dimensions that keys share are plain, what is added is whole."""
    if _COUNTED not in {type_.dtype for type_ in (*operands, *results)}:
        return opaque(operands, results, attrs)
    rank = min(type_.rank for type_ in (*operands, *results))
    shared = names("k", rank)
    ins = [(*shared, *names(f"o{i}d", t.rank - rank)) for i, t in enumerate(operands)]
    outs = [(*shared, *names(f"r{i}d", t.rank - rank)) for i, t in enumerate(results)]
    added = [dims[rank:] for dims in (*ins, *outs)]
    return build_spec(operands, ins, results, outs, as_whole(*added))


def _folded(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    """One key with many numbers, or the other way round: each entry by itself."""
    rank = results[0].rank
    if operands[0].dtype != _COUNTED or any(
        t.shape not in ((), results[0].shape) for t in operands
    ):
        return _by_key(operands, results, attrs)
    shared = names("k", rank)
    return build_spec(operands, [shared if t.rank else [] for t in operands], results, [shared])


RECORDS = (
    OpDef("random_bits", _bits, "random", _bits_flops, local=_bits_local, offset=True),
    OpDef("random_clone", _by_key, "random"),
    OpDef("random_fold_in", _folded, "random"),
    # Gamma draws split the key once per element, which a shard cannot repeat.
    OpDef("random_gamma", opaque, "random"),
    OpDef("random_seed", _by_key, "random"),
    OpDef("random_split", _by_key, "random"),
    OpDef("random_unwrap", _by_key, "random"),
    OpDef("random_wrap", _by_key, "random"),
    OpDef("rng_bit_generator", opaque, "random"),
    OpDef("rng_uniform", opaque, "random"),
)
