"""Recomputation and the memory of the host in the fields of Megatron-LM and Megatron-Bridge.

Fields of `TransformerConfig` and `OptimizerConfig`, which are arguments of Megatron-LM's scripts
too (NVIDIA/Megatron-LM d98e8a64, 2026-08-22: `megatron/core/transformer/transformer_config.py`,
`megatron/core/optimizer/optimizer_config.py`, `megatron/training/arguments.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .degrees import Degrees
from .kept import AGAIN, FULL, HOST, INPUT, MIXED, NONE, Kept

Field = str | int | bool | float | tuple[str, ...]
_MLP = frozenset({"mlp-in", "mlp-gate", "mlp-up"})
_EXPERTS = frozenset({"expert-in", "expert-gate", "expert-up"})
_QKV = frozenset({"query", "key", "value", "key-value", "query-key-value"})
_ALL: Mapping[str, Field] = {
    "recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1,
}  # fmt: skip


def model_fields(kept: Kept, notes: list[str]) -> Mapping[str, Field]:
    """Recomputation by module, or of whole layers, and what modules leave on the host.

    Where no module says what is computed again, all of each layer is: that needs no more memory.
    """
    modules = _modules(kept)
    unsaid = _unsaid(kept, modules)
    found: dict[str, Field] = {}
    if kept.kind == FULL or unsaid:
        found.update(_ALL)
    elif modules:
        found.update(recompute_granularity="selective", recompute_modules=modules)
    if unsaid:
        notes.append(f"Megatron has no module for {', '.join(unsaid)}, so that all of each layer "
                     f"is computed again here; in the plan: {'; '.join(kept.texts())}")  # fmt: skip
    else:
        notes += kept.others
        if kept.spared:
            notes.append(f"all of each layer is computed again here; the plan keeps: "
                         f"{', '.join(sorted(kept.spared))}")  # fmt: skip
        if kept.light and kept.kind != FULL:
            notes.append("some light operations, such as norms and activations, are computed again "
                         "in the plan; see the modules layernorm and moe_act")  # fmt: skip
    away = () if "recompute_method" in found else _offloaded(kept)
    if away:
        found.update(fine_grained_activation_offloading=True, offload_modules=away)
    if left := sorted(kept.those(HOST) - _covered(away, kept)):
        notes.append(f"the plan keeps on the host what has no setting here: {', '.join(left)}")
    return found


def optimizer_fields(d: Degrees, notes: list[str]) -> Mapping[str, Field]:
    """The share of the optimizer's state that is on the host, where Megatron also updates it."""
    if d.parameters_on_host:
        notes.append(f"{d.parameters_on_host:.1%} of the parameters are on the host, which "
                     "Megatron has no setting for")  # fmt: skip
    if not d.state_on_host:
        return {}
    share = f"{d.state_on_host:.1%} of the optimizer's state is on the host"
    if d.zero > 1:
        notes.append(f"{share}; Megatron's optimizer on the host is not that of Megatron-FSDP")
        return {}
    notes.append(f"{share}, where Megatron updates it; the plan updates it on the devices")
    return {
        "use_precision_aware_optimizer": True, "optimizer_cpu_offload": True,
        "optimizer_offload_fraction": round(d.state_on_host, 4),
    }  # fmt: skip


def distributed(d: Degrees) -> bool:
    """Whether the distributed optimizer is used, which a state on the host needs too."""
    return d.zero > 0 or d.state_on_host > 0


def _modules(kept: Kept) -> tuple[str, ...]:
    again = kept.those(AGAIN)

    def all_of(parts: frozenset[str]) -> bool:
        return bool(found := parts & kept.parts.keys()) and found <= again

    return tuple(
        name for name, whether in (
            ("core_attn", kept.attention_again or "attention" in again),
            ("mlp", all_of(_MLP)), ("moe", all_of(_EXPERTS)),
        ) if whether
    )  # fmt: skip


def _unsaid(kept: Kept, modules: tuple[str, ...]) -> list[str]:
    """Parts that are computed again, for which there is no module."""
    if kept.kind in (NONE, FULL):
        return []
    said = {"attention"}
    said |= _MLP | {"mlp-out"} if "mlp" in modules else set[str]()
    said |= _EXPERTS | {"expert-out"} if "moe" in modules else set[str]()
    found = sorted((kept.those(AGAIN) - said) | kept.those(MIXED))
    return found or ([] if modules else ["other products"])


def _offloaded(kept: Kept) -> tuple[str, ...]:
    """Modules whose inputs are on the host."""

    def names() -> Iterator[str]:
        away = kept.those(HOST)
        if INPUT in away:
            yield "attn_norm"
        if (reads := _QKV & kept.parts.keys()) and reads <= away:
            yield "core_attn"
            if "attention" in away:
                yield "attn_proj"

    return tuple(names())


def _covered(modules: tuple[str, ...], kept: Kept) -> frozenset[str]:
    of = {"attn_norm": frozenset({INPUT}), "core_attn": _QKV, "attn_proj": frozenset({"attention"})}
    return frozenset(part for module in modules for part in of[module] if part in kept.parts)
