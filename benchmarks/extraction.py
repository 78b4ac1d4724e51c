"""The cheapest program in real e-graphs: cost, bound and time of every extractor.

    python -m benchmarks extraction [--data DIR] [--limit SECONDS]

DIR holds e-graphs of the extraction gym (github.com/egraphs-good/extraction-gym, MIT), `.json` or
`.json.gz`; TENSAT's with measured costs are in benchmarks/data/egraphs. The costs are
milliseconds. An empty bound is 0; `-` is an e-graph too wide for a tree decomposition. CPU time of
one process, reading not counted.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from substitutions.extraction import extract, read_egraph, simplify

CARRIED = Path(__file__).parent / "data" / "egraphs"
METHODS = ("greedy-tree", "greedy-dag", "decomposition", "ilp")
LIMIT_S = 120.0
QUICK_S = 20.0


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Prints the table and returns its rows.

    Args:
        quick: with less time for the ILP.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks extraction")
    parser.add_argument("--data", type=Path, default=CARRIED, help="folder of the e-graphs")
    parser.add_argument("--limit", type=float, default=QUICK_S if quick else LIMIT_S)
    given, _ = parser.parse_known_args()
    print("| e-graph | classes, nodes | simplified | method | cost | bound | gap | cpu s | stop |")
    print("|---|---|---|---|---|---|---|---|---|")
    rows: list[dict[str, Any]] = []
    for path in sorted([*given.data.glob("*.json"), *given.data.glob("*.json.gz")]):
        for method in METHODS:
            rows.append(measured(path, method, given.limit))
            print(line(rows[-1]), flush=True)
    return rows


def measured(path: Path, method: str, limit_s: float) -> dict[str, Any]:
    """One method on one e-graph."""
    graph = read_egraph(path)
    small = simplify(graph)
    start = time.process_time()
    found = extract(graph, method, limit_s)
    seconds = time.process_time() - start
    row: dict[str, Any] = {
        "egraph": path.name.partition(".")[0], "method": method, "cpu_s": seconds,
        "classes": graph.classes, "nodes": len(graph.nodes),
        "small_classes": small.graph.classes, "small_nodes": len(small.graph.nodes),
    }  # fmt: skip
    if found is not None:
        row |= {"cost": found.cost, "bound": found.lower_bound, "stop": found.stop}
        row["gap"] = 1.0 - found.lower_bound / found.cost if found.cost else 0.0
    return row


def line(row: dict[str, Any]) -> str:
    sizes = f"{row['classes']}, {row['nodes']} | {row['small_classes']}, {row['small_nodes']}"
    head = f"| {row['egraph']} | {sizes} | {row['method']} "
    if "cost" not in row:
        return f"{head}| - | | | {row['cpu_s']:.2f} | too wide |"
    bound = f"{row['bound']:.6f}" if row["bound"] else ""
    return (
        f"{head}| {row['cost']:.6f} | {bound} | {row['gap']:.2%} | {row['cpu_s']:.2f} "
        f"| {row['stop']} |"
    )


if __name__ == "__main__":
    main()
