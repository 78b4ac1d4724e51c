# pyright: basic
"""HiGHS behind a thread: it keeps the time limit, and Ctrl-C reaches Python meanwhile."""

from __future__ import annotations

import threading
import time
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from substitutions import QuietHighs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# GRACE_S: seconds that HiGHS has beyond its own time limit before it is stopped.
TOLERANCE = 1e-9
GRACE_S = 1.0


class Highs:
    """One programme, handed over column by column; rows may be added between runs."""

    def __init__(
        self,
        cost: Floats,
        row_count: int,
        rows: Floats,
        starts: Ints,
        index: Ints,
        value: Floats,
        integral: NDArray[np.bool_],
        upper: Floats,
    ) -> None:
        """Takes min cost x, A x = rows, 0 <= x <= upper, with A by columns.

        Args:
            cost: per column.
            row_count: number of rows.
            rows: right-hand sides.
            starts: where each column begins in `index`, and the end.
            index: row of each entry.
            value: value of each entry.
            integral: columns that must be whole in the end.
            upper: per column.
        """
        self.integral = np.flatnonzero(integral).astype(np.int32)
        self.columns = len(cost)
        self.solver = QuietHighs()
        self.solver.setOptionValue("threads", 1)
        self.solver.setOptionValue("mip_allow_restart", False)  # HiGHS 1.15 may restart for ever
        for name in ("primal_feasibility", "dual_feasibility", "mip_feasibility"):
            self.solver.setOptionValue(f"{name}_tolerance", TOLERANCE)
        self.solver.passModel(
            self.columns, row_count, len(index), int(highspy.MatrixFormat.kColwise),
            int(highspy.ObjSense.kMinimize), 0.0, cost, np.zeros(self.columns), upper, rows, rows,
            starts.astype(np.int32), index.astype(np.int32), value,
            np.zeros(self.columns, dtype=np.int32),
        )  # fmt: skip
        self._stop = False
        self._ran = False
        self._asks: float = np.inf  # that branch and bound has left
        self.asked = 0  # how often it asked so far
        for event in ("cbSimplexInterrupt", "cbIpmInterrupt"):
            getattr(self.solver, event).subscribe(self._ask)
        self.solver.cbMipInterrupt.subscribe(self.ask_branching)

    def _ask(self, event: Any) -> None:
        if self._stop:
            event.interrupt()

    def ask_branching(self, event: Any) -> None:
        self._asks -= 1
        self.asked += 1
        if self._stop or self._asks < 0:
            event.interrupt()

    def set(self, name: str, value: Any) -> None:
        self.solver.setOptionValue(name, value)

    def add_row(self, index: Ints, value: Floats, most: float) -> None:
        """Adds sum value * x[index] <= most."""
        found = index.astype(np.int32)
        self.solver.addRow(-highspy.kHighsInf, most, len(found), found, value)

    def make_integral(self) -> None:
        """From now on the integral columns are."""
        self._ran = False
        kind = np.full(len(self.integral), int(highspy.HighsVarType.kInteger), dtype=np.uint8)
        self.solver.clearSolver()  # HiGHS 1.15 may not end when it begins from the relaxation
        self.solver.changeColsIntegrality(len(self.integral), self.integral, kind)

    def run(self, deadline: float, asks: float = np.inf) -> str:
        """Solves; returns `optimal`, `infeasible`, or `stopped` for anything else.

        Args:
            deadline: by the monotonic clock.
            asks: how often branch and bound may ask whether to go on. It asks at fixed places, with
                one thread at the same ones each time: a measure of work that no clock enters.
        """
        self._asks = asks
        left = deadline - time.monotonic()
        if left <= 0:
            return "stopped"
        # its clock runs on from one run to the next
        self.solver.setOptionValue("time_limit", float(self.solver.getRunTime()) + left)
        self._ran = True
        thread = threading.Thread(target=self.solver.run, daemon=True)
        thread.start()
        try:
            thread.join(left + GRACE_S if left < threading.TIMEOUT_MAX - GRACE_S else None)
        finally:
            self._stop = True
            thread.join()
            self._stop = False
        status = self.solver.getModelStatus()
        if status == highspy.HighsModelStatus.kOptimal:
            return "optimal"
        if status in (
            highspy.HighsModelStatus.kInfeasible,
            highspy.HighsModelStatus.kUnboundedOrInfeasible,
            highspy.HighsModelStatus.kObjectiveBound,
        ):
            return "infeasible"
        return "stopped"

    def values(self) -> Floats | None:
        """The best solution known, if there is one."""
        if self.solver.getInfo().primal_solution_status != highspy.kSolutionStatusFeasible:
            return None
        return np.asarray(self.solver.getSolution().col_value)

    def objective(self) -> float:
        return float(self.solver.getInfo().objective_function_value)

    def bound(self) -> float:
        """Of the last run as an integer programme."""
        return float(self.solver.getInfo().mip_dual_bound) if self._ran else -np.inf
