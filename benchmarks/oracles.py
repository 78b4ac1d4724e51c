# pyright: basic
"""Expectations of Alpa's tests compared with our plans; costs are Alpa's, without a unit."""

from __future__ import annotations

from typing import Any

from tests.oracles.rows import ROWS, Row

HEAD = "| row | mesh | expected | ours | ours / expected | collectives of ours |"
RULE = "|---|---|---|---|---|---|"
QUICK_SECTIONS = ("4.1", "4.5")


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Prints the table and returns its rows.

    Args:
        quick: perceptrons and small graphs only.
    """
    print(f"{HEAD}\n{RULE}")
    found: list[dict[str, Any]] = []
    for row in ROWS:
        if not quick or row.section in QUICK_SECTIONS:
            found.append(measure(row))
            print(line(found[-1]), flush=True)
    return found


def measure(row: Row) -> dict[str, Any]:
    solved = row.solve()
    return {
        "row": f"{row.section} {row.name}",
        "mesh": "x".join(map(str, row.mesh)),
        "expected": row.expected(row.step(), row),
        "ours": solved.solution.cost,
        "collectives": solved.counts(),
    }


def line(found: dict[str, Any]) -> str:
    expected, ours = found["expected"], found["ours"]
    ratio = f"{ours / expected:.3f}" if expected else "1.000" if ours == 0 else "inf"
    kinds = ", ".join(f"{count:g} {kind}" for kind, count in found["collectives"].items())
    cells = (found["row"], found["mesh"], f"{expected:,.0f}", f"{ours:,.0f}", ratio, kinds)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
