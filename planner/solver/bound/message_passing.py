"""Sequential message passing: a lower bound, a good choice, and options that cannot be optimal.

Messages M_uv and memory multipliers p_t re-parametrise the problem,

    c'_v(k) = c_v(k) + sum_t p_t m_vt(k) + sum_u M_uv(k)
    e'_uv(i, j) = e_uv(i, j) - M_uv(j) - M_vu(i)

and for any messages and any p >= 0

    L = sum_v min c'_v + sum_uv min e'_uv - sum_t p_t limit_t

bounds every choice that fits from below: it is a dual solution of the linear relaxation. Every
step of a sweep can only raise it.

On long problems each sweep raises the bound by a little less than the last one, in much the same
direction. Sweeps are therefore accelerated: before each sweep messages move by a growing share of
their last change; the momentum is reset once the change reverses. Any messages give a valid bound.

Source: Kolmogorov, A new look at reweighted message passing, IEEE TPAMI 37(5), 2015 (SRMP);
Beck and Teboulle, A fast iterative shrinkage-thresholding algorithm, SIAM J. Imaging Sci. 2(1),
2009, section 4; O'Donoghue and Candes, Adaptive restart for accelerated gradient schemes, Found.
Comput. Math. 15, 2015, section 3.2.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from functools import cached_property

import numpy as np

from ..arrays import Flat, Ints, Pool, ranges
from ..problem import Floats
from ..reduce.arc_consistency import incidence
from .message_kernels import Cells, bound_of, levelled, pass_over, rounded, slack_of, turn

State = tuple[Floats, Floats, Floats]  # messages, masses, multipliers
Momentum = tuple[float, Floats, Floats]  # pace, next change of messages and of masses


class Lower:
    """A bound, and for each option the least distance above it of any choice with that option."""

    def __init__(self, messages: Messages, bound: float) -> None:
        self.bound, self.state = bound, messages.state()
        self._of = messages

    @cached_property
    def slack(self) -> Floats:
        return self._of.slack(self.state)


class Messages:
    """Message passing on one problem; every pair must be finite for some option at either end."""

    def __init__(self, flat: Flat, *, single: bool = False) -> None:
        """Starts from zero messages.

        Args:
            flat: the problem.
            single: whether messages are in single precision, in half the time. Bounds are not.
        """
        self.flat = flat
        sizes = flat.sizes
        u, v = flat.ends[:, 0], flat.ends[:, 1]
        # messages into the first and into the second end of each edge, one after the other
        self.into = np.stack(
            (np.cumsum(sizes[u]) - sizes[u], sizes[u].sum() + np.cumsum(sizes[v]) - sizes[v]),
            axis=1,
        ).astype(np.int64)
        self.message: Floats = np.zeros(int(sizes[u].sum() + sizes[v].sum()))
        self.mass: Floats = flat.cost.copy()
        self.seen = flat.cost.copy()  # costs of the options of a node at its last visit
        self.multiplier = np.zeros(len(flat.limit))
        self.at, self.edge = incidence(flat)
        ahead = np.bincount(u, minlength=flat.size)
        behind = np.bincount(v, minlength=flat.size)
        self.share = 1.0 / np.maximum(np.maximum(ahead, behind), 1)
        # tables row by row and column by column: loops over the options of either end are wide
        self.cells: Cells = flat.pool.astype(np.float32) if single else flat.pool
        self.turned: Cells = np.empty_like(self.cells)
        _, once = np.unique(flat.table, return_index=True)
        turn(once, flat.first, flat.ends, flat.table, self.cells, self.turned)
        self.momentum: Momentum = self.no_momentum()

    def no_momentum(self) -> Momentum:
        return 1.0, np.zeros_like(self.message), np.zeros_like(self.mass)

    def sweep(self) -> None:
        """One pass over the nodes and back, accelerated by the momentum."""
        flat, known, mass = self.flat, self.message, self.mass
        pace, message_change, mass_change = self.momentum
        begin = known + message_change
        self.message, self.mass = begin.copy(), mass + mass_change
        for forward in (True, False):
            pass_over(
                forward, flat.first, flat.ends, flat.table, self.cells, self.turned, self.at,
                self.edge, self.into, self.share, self.message, self.mass, self.seen,
            )  # fmt: skip
        moved = self.message - known
        if float(((begin - self.message) * moved).sum()) > 0.0:  # too far
            self.momentum = self.no_momentum()
            return
        longer = (1.0 + math.sqrt(1.0 + 4.0 * pace**2)) / 2.0
        share = (pace - 1.0) / longer
        self.momentum = longer, share * moved, share * (self.mass - mass)

    def set_multiplier(self, multiplier: Floats) -> None:
        """Sets the memory multipliers [s/byte per moment]."""
        flat = self.flat
        change = np.concatenate(([0.0], np.cumsum(multiplier - self.multiplier)))
        step = change[flat.end] - change[flat.begin]
        counts = flat.sizes[flat.owner]
        np.add.at(
            self.mass, ranges(flat.first[flat.owner], counts),
            flat.use[ranges(flat.use_at, counts)] * np.repeat(step, counts),
        )  # fmt: skip
        self.multiplier = multiplier

    def with_costs(self, more: Floats) -> Messages:
        """The messages and multipliers for the problem with `more` [s] added to its options."""
        other = copy(self)
        other.flat = replace(self.flat, cost=self.flat.cost + more)
        other.message = self.message.copy()
        other.mass, other.seen = self.mass + more, self.seen + more
        other.momentum = self.no_momentum()
        return other

    def lower(self) -> Lower:
        """The bound of these messages and multipliers."""
        flat = self.flat
        total = bound_of(
            flat.first, flat.ends, flat.table, flat.pool, self.into, self.message, self.mass
        )
        return Lower(self, total + flat.constant - float(self.multiplier @ flat.limit))

    def slack(self, state: State) -> Floats:
        """For each option the least distance above a bound of any choice with that option [s].

        s_v(i) = c'_v(i) - min c'_v
                 + sum_u ( min_j ( e'_uv(i, j) + c'_u(j) - min c'_u ) - min e'_uv )
        """
        flat, found = self.flat, np.empty(len(self.flat.cost))
        message, mass, _ = state
        slack_of(flat.first, flat.ends, flat.table, flat.pool, self.into, message, mass, found)
        return found

    def state(self) -> State:
        """A copy of the state for `restore`."""
        return self.message.copy(), self.mass.copy(), self.multiplier

    def restore(self, state: State) -> None:
        """Restores a state; the momentum is zero then."""
        self.message, self.mass, self.multiplier = state[0].copy(), state[1].copy(), state[2]
        self.momentum = self.no_momentum()

    def levelled(self) -> Flat:
        """The problem in re-parametrised costs, without multipliers; the least are about zero."""
        flat = self.flat
        self.set_multiplier(np.zeros(len(flat.limit)))
        sizes = flat.sizes
        wide = sizes[flat.ends[:, 0]] * sizes[flat.ends[:, 1]]
        table = np.cumsum(wide) - wide
        pool = np.empty(int(wide.sum()))
        cost = np.empty(len(flat.cost))
        total = levelled(
            flat.first, flat.ends, flat.table, flat.pool, self.into, self.message, self.mass,
            table, cost, pool,
        )  # fmt: skip
        constant = flat.constant + total
        return replace(flat, cost=cost, table=table, tables=Pool(pool), constant=constant)

    def round(self, limit: Floats | None = None, wrong: Floats | None = None) -> Ints:
        """A choice: nodes in order, each the best that fits, given the earlier ones.

        Args:
            limit: of memory at each moment, that of the problem if None.
            wrong: by how much each option seems dearer than it is.
        """
        flat = self.flat
        room = flat.limit if limit is None else limit
        mass = self.mass if wrong is None else self.mass + wrong
        stretch = np.searchsorted(flat.owner, np.arange(flat.size + 1))
        return rounded(
            flat.first, flat.ends, flat.table, flat.pool, self.at, self.edge, self.into,
            self.message, mass, stretch, flat.begin, flat.end, flat.use_at, flat.use,
            room.copy(),
        )  # fmt: skip
