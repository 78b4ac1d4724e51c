"""Union-find by path halving over numbers: `parent[n]` is nearer to the representative of n.

Source: Tarjan and van Leeuwen, Worst-case analysis of set union algorithms, Journal of the ACM
31(2), 1984.
"""

from __future__ import annotations


def find(parent: list[int], member: int) -> int:
    """Who stands for a member's set now; a set is joined to another by parent[find] = find."""
    while parent[member] != member:
        parent[member] = parent[parent[member]]
        member = parent[member]
    return member
