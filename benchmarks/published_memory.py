"""Published memory tables beside the formulas of the cost estimate: ZeRO, sequence parallelism."""

from __future__ import annotations

from typing import Any

from benchmarks.transformer_step import STATE_BYTES, Degrees, Model, activation_bytes

# Rajbhandari et al., SC'20, Table 1: GB per device of 7.5, 128 and 1000 billion parameters for
# (ZeRO stage, data-parallel devices).
ZERO: dict[tuple[int, int], tuple[float, float, float]] = {
    (1, 1): (120, 2048, 16000), (1, 4): (52.5, 896, 7000), (1, 16): (35.6, 608, 4750),
    (1, 64): (31.4, 536, 4187), (1, 256): (30.4, 518, 4046), (1, 1024): (30.1, 513, 4011),
    (2, 1): (120, 2048, 16000), (2, 4): (41.3, 704, 5500), (2, 16): (21.6, 368, 2875),
    (2, 64): (16.6, 284, 2218), (2, 256): (15.4, 263, 2054), (2, 1024): (15.1, 257, 2013),
    (3, 1): (120, 2048, 16000), (3, 4): (30, 512, 4000), (3, 16): (7.5, 128, 1000),
    (3, 64): (1.88, 32, 250), (3, 256): (0.47, 8, 62.5), (3, 1024): (0.12, 2, 15.6),
}  # fmt: skip
BILLIONS = (7.5, 128.0, 1000.0)

# The same, Table 2: billions of parameters in 32 GB with 64 data-parallel devices, by stage.
LARGEST_32_GB = {0: 2.0, 1: 7.6, 2: 14.4, 3: 128.0}

# Fan et al., DAPPLE, PPoPP'21, Table 7: GB of parameters and states of BERT-Large with so many
# layers of width 1024 and 31 million parameters besides.
DAPPLE = {48: 10.2, 106: 21.9, 215: 43.8, 428: 88.2}

# Korthikanti et al., MLSys'23, Figure 7: share of the tensor-parallel baseline's activations, as
# "about half" for one technique, "under 20 %" for both and 10 % for full recomputation.
MODELS = {"22B": (48, 6144, 64, 4), "175B": (96, 12288, 96, 1), "530B": (105, 20480, 128, 1),
          "1T": (128, 25600, 160, 1)}  # fmt: skip
SHARES: dict[str, tuple[dict[str, Any], float, float]] = {
    "sequence parallel": ({"sequence": True}, 0.4, 0.7),
    "selective": ({"recompute": "selective"}, 0.4, 0.7),
    "both": ({"sequence": True, "recompute": "selective"}, 0.14, 0.21),
    "full": ({"recompute": "full"}, 0.07, 0.11),
}


def zero_gb(stage: int, devices: int, billions: float) -> float:
    """GB of parameters, gradients and Adam's states: (2 + 2 + 12) bytes, split by stage."""
    weight, gradient, rest = STATE_BYTES
    split = [1 if stage < at else devices for at in (3, 2, 1)]
    return billions * (weight / split[0] + gradient / split[1] + rest / split[2])


def largest_billions(stage: int, devices: int, limit_gb: float) -> float:
    """Parameters [10^9] whose states fill this many GB."""
    return limit_gb / zero_gb(stage, devices if stage else 1, 1.0)


def dapple_gb(layers: int) -> float:
    """GB of states of BERT-Large's layers, 12 h^2 weights each, and its embedding."""
    return sum(STATE_BYTES) * (12 * 1024**2 * layers + 31e6) / 1e9


def memory_rows() -> list[dict[str, object]]:
    """Prints both tables; returns their rows."""
    rows: list[dict[str, object]] = []
    worst = 0.0
    for (stage, devices), published in ZERO.items():
        for billions, took in zip(BILLIONS, published, strict=True):
            said = zero_gb(stage, devices, billions)
            worst = max(worst, abs(said / took - 1.0))
            rows.append({"source": "ZeRO Table 1", "case": f"stage {stage}, {devices} devices, "
                         f"{billions:g}B", "published_gb": took, "predicted_gb": said})  # fmt: skip
    print(f"ZeRO Table 1: {len(ZERO) * 3} cells, largest difference {worst:.1%}")
    for stage, billions in LARGEST_32_GB.items():
        said = largest_billions(stage, 64, 32.0)
        print(f"ZeRO Table 2, stage {stage}: {said:.1f} B parameters, published {billions} B")
        rows.append({"source": "ZeRO Table 2", "case": f"stage {stage}",
                     "published_b": billions, "predicted_b": said})  # fmt: skip
    for layers, took in DAPPLE.items():
        said = dapple_gb(layers)
        print(f"DAPPLE Table 7, {layers} layers: {said:.1f} GB, published {took} GB")
        rows.append({"source": "DAPPLE Table 7", "case": f"{layers} layers",
                     "published_gb": took, "predicted_gb": said})  # fmt: skip
    print("\n| model | technique | share of the baseline | published |\n|---|---|---|---|")
    for name, (layers, hidden, heads, micro) in MODELS.items():
        model = Model(layers, hidden, heads, heads, 4 * hidden, False, 51200, 2048)
        common: dict[str, Any] = {"tensor": 8, "micro_batch": micro, "flash": False}
        base = activation_bytes(model, Degrees(**common))
        for technique, (changes, low, high) in SHARES.items():
            share = activation_bytes(model, Degrees(**common, **changes)) / base
            right = low <= share <= high
            print(f"| {name} | {technique} | {share:.2f} | {low:.2f} to {high:.2f} |")
            rows.append({"source": "sequence parallelism Figure 7", "case": f"{name} {technique}",
                         "share": share, "right": right})  # fmt: skip
    return rows
