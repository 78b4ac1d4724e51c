"""The rule files that the tests judge, read once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from substitutions import Rule, Verdict, judge_all, read_rules

FOLDER = Path(__file__).parent / "data"
FLEXFLOW = "flexflow_graph_subst_3_v2.json.gz"
TASO = "taso_graph_subst.pb.gz"
EQUATIONS = "taso_rules.txt.gz"
CONVERTED = "converted.txt.gz"
TEXTS = (
    EQUATIONS, "single_rules.txt.gz", "multi_rules.txt.gz", CONVERTED,
    "converted_multi.txt.gz",
)  # fmt: skip
FILES = (FLEXFLOW, TASO, *TEXTS)

# How many rules each set has by its authors; a rule of two outputs is two lines of a multi file.
PUBLISHED_COUNTS: Mapping[str, int] = {FLEXFLOW: 640, TASO: 133, EQUATIONS: 931}


@cache
def rules(name: str) -> tuple[Rule, ...]:
    return read_rules(FOLDER / name)


@cache
def verdicts(name: str) -> tuple[Verdict, ...]:
    return tuple(judge_all(rules(name)))
