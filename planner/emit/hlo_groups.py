"""How many devices a collective joins, in each of the ways in which XLA writes its groups."""

from __future__ import annotations

import math
import re

_LISTED = re.compile(r"replica_groups=\{(\{.*?\})\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]*)\]<=\[")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{}]*?(?:\{([^}]*)\}|(?=,\s|$))")
_AXIS = re.compile(r"'([^']*)'(?::\(\d+\)(\d+))?(?:=(\d+))?")
_PAIRS = re.compile(r"source_target_pairs=\{(\{.*?\})\}")
_PAIR = re.compile(r"\{(\d+),(\d+)\}")


def group_size(line: str, devices: int) -> int:
    """Devices that the collective of one line joins; of a permute those on its longest cycle.

        replica_groups={{0,1},{2,3}}                 listed
        replica_groups=[2,4]<=[4,2]T(1,0)            groups x size, numbered in some order
        replica_groups=mesh['a'=2,'b'=4] {'b'}       axes of a mesh; 'b':(2)2 is a part of one
        replica_groups={}                            all

    Args:
        line: an instruction.
        devices: of the program.
    """
    pairs = _PAIRS.search(line)
    if pairs is not None:
        return _longest_cycle(pairs.group(1))
    mesh = _MESH.search(line)
    if mesh is not None:
        return _along(*mesh.groups())
    iota = _IOTA.search(line)
    if iota is not None:
        return int(iota.group(1).split(",")[-1])
    listed = _LISTED.search(line)
    if listed is not None:
        return max(len(group.split(",")) for group in listed.group(1).strip("{}").split("},{"))
    return devices


def _along(mesh: str, axes: str | None) -> int:
    """Devices along some axes of a mesh; all of it where none are named."""
    sizes = {name: int(size) for name, _, size in _AXIS.findall(mesh) if size}
    if axes is None:
        return math.prod(sizes.values())
    return math.prod(int(part) if part else sizes[name] for name, part, _ in _AXIS.findall(axes))


def _longest_cycle(text: str) -> int:
    """Devices on the longest cycle, or chain, of {{from,to},...}."""
    target = {int(a): int(b) for a, b in _PAIR.findall(text)}
    longest = 1
    for start in target:
        seen, here = {start}, target[start]
        while here in target and here not in seen:
            seen.add(here)
            here = target[here]
        longest = max(longest, len(seen | {here}))
    return longest
