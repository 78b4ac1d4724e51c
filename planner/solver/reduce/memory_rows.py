"""Use of memory read through a map, and what of the limit is left to decide about.

What a node uses under every option is taken off the limit. A moment matters only if the dearest
options together are over its limit, and only if no neighbouring moment has all its uses and a
limit no higher.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Flat, Ints, ranges
from ..numba_jit import compiled
from ..problem import Floats

# owner, begin, end, use_at, use; and with limit and moment
Memory = tuple[Ints, Ints, Ints, Ints, Floats]
Settled = tuple[Ints, Ints, Ints, Ints, Floats, Floats, Ints]


def stretches(flat: Flat, follows: Ints, at: Ints, option: Ints, sizes: Ints) -> Memory:
    """Disjoint stretches of the new nodes, each with the sum of what its members use then.

    The owner `len(sizes)` holds what is used in any case. Arguments as in `Remap`.
    """
    target = np.where(follows < 0, len(sizes), follows)[flat.owner]
    widths = np.append(sizes, 1)
    counts = widths[target]
    order = np.argsort(target, kind="stable")
    owner, begin, end = target[order], flat.begin[order], flat.end[order]
    counts, use_at, from_ = counts[order], flat.use_at[order], at[flat.owner[order]]
    cells = np.repeat(use_at, counts) + option[ranges(from_, counts)]
    values = flat.use[cells]
    place = np.cumsum(counts) - counts
    # two events per stretch, sorted by owner and time
    at_time = np.concatenate((begin, end))
    of = np.tile(np.arange(len(owner)), 2)
    sign = np.repeat([1.0, -1.0], len(owner))
    order = np.lexsort((at_time, owner[of]))
    at_time, of, sign = at_time[order], of[order], sign[order]
    widest = int(widths.max(initial=1))
    return _swept(at_time, of, sign, owner, place, values, widths, widest)


@compiled
def _swept(  # noqa: C901
    at_time: Ints, of: Ints, sign: Floats, owner: Ints, place: Ints, values: Floats, widths: Ints,
    widest: int,
) -> Memory:  # fmt: skip
    """Runs through the events of each owner with the use that is current."""
    count = len(at_time)
    room = 0
    for n in range(count):
        room += widths[owner[of[n]]]
    owners = np.empty(count, dtype=np.int64)
    begins = np.empty(count, dtype=np.int64)
    ends = np.empty(count, dtype=np.int64)
    use_at = np.empty(count, dtype=np.int64)
    use = np.empty(room)
    made = filled = 0
    now = np.zeros(widest)
    n = 0
    while n < count:
        r = owner[of[n]]
        width = widths[r]
        now[:width] = 0.0
        alive = 0
        while n < count and owner[of[n]] == r:
            time = at_time[n]
            while n < count and owner[of[n]] == r and at_time[n] == time:
                here = place[of[n]]
                for i in range(width):
                    now[i] += sign[n] * values[here + i]
                alive += 1 if sign[n] > 0 else -1
                n += 1
            if alive == 0:
                now[:width] = 0.0
                continue
            stop = at_time[n]
            if made and owners[made - 1] == r and ends[made - 1] == time:
                same = True
                for i in range(width):
                    same = same and use[use_at[made - 1] + i] == now[i]
                if same:
                    ends[made - 1] = stop
                    continue
            owners[made], begins[made], ends[made], use_at[made] = r, time, stop, filled
            for i in range(width):
                use[filled + i] = now[i]
            filled += width
            made += 1
    return owners[:made], begins[:made], ends[:made], use_at[:made], use[:filled]


def settle(memory: Memory, limit: Floats, moment: Ints) -> Settled:
    """Takes off what is used in any case, and leaves out what cannot matter."""
    owner, begin, end, use_at, use = memory
    counts = np.diff(np.append(use_at, len(use)))
    if len(owner):
        least = np.minimum.reduceat(use, use_at)
        most = np.maximum.reduceat(use, use_at) - least
        use = use - np.repeat(least, counts)
        limit = limit - _over_time(begin, end, least, len(limit))
    else:
        most = np.zeros(0)
    spread = _over_time(begin, end, most, len(limit))
    kept = (spread > limit) | (limit < 0.0)
    kept &= ~_covered(begin, end, limit, kept)
    number = np.concatenate(([0], np.cumsum(kept)))
    begin, end = number[begin], number[end]
    held = (end > begin) & (most > 0.0)
    use = use[np.repeat(held, counts)]
    counts = counts[held]
    return (
        owner[held], begin[held], end[held], np.cumsum(counts) - counts, use, limit[kept],
        moment[kept],
    )  # fmt: skip


def _over_time(begin: Ints, end: Ints, value: Floats, count: int) -> Floats:
    """Sum of the values at each moment."""
    change = np.bincount(begin, value, minlength=count + 1).astype(np.float64)
    change -= np.bincount(end, value, minlength=count + 1)
    total: Floats = np.cumsum(change)[:-1]
    return total


@compiled
def _covered(begin: Ints, end: Ints, limit: Floats, kept: np.ndarray) -> np.ndarray:
    """Moments whose uses all last to a neighbouring one with a limit no higher."""
    count = len(limit)
    begins = np.zeros(count + 1, dtype=np.int64)
    ends = np.zeros(count + 1, dtype=np.int64)
    for k in range(len(begin)):
        begins[begin[k]] += 1
        ends[end[k]] += 1
    covered = np.zeros(count, dtype=np.bool_)
    # `last` is the moment before, among those left; nothing ended or began since
    for forward in (True, False):
        last, quiet = -1, False
        for step in range(count):
            t = step if forward else count - 1 - step
            border = t if forward else t + 1
            changed = begins[border] if forward else ends[border]
            quiet = quiet and changed == 0
            if not kept[t] or covered[t]:
                continue
            if last >= 0 and quiet and limit[last] <= limit[t]:
                covered[t] = True
                continue
            last, quiet = t, True
    return covered
