"""Memory at the end of a program, where its results are brought to their last states.

Seen in programs compiled by XLA for GPUs with its latency-hiding scheduler (jaxlib 0.10.2): stacks
of parameters updated in shards and gathered along a dimension other than the first. Llama-3 8B on
one sequence is predicted to take 18.5 GB with what is counted here, 16.4 without; XLA takes 19.7
(`python -m benchmarks kernel-attention`).
"""

from __future__ import annotations

from collections.abc import Collection

from ir import LoweredPlan, Mesh, Reshard

from ..problem.facts import Facts


def _is_of_result(reshard: Reshard) -> bool:
    """Whether a reshard makes a result of the program."""
    return reshard.passage.op < 0 and reshard.passage.link < 0


def stays_bytes(facts: Facts, moved: Reshard, last: int, mesh: Mesh) -> int:
    """Bytes that a reshard of a result of the program adds until the program ends.

    Reshards of results run one after another at the end, and what each writes waits there: it is a
    result, or XLA copies it into its argument beside a later reshard, as the last thing it does.
    The state before is freed, if it has a buffer that the nodes count.

    Args:
        facts: of the program.
        moved: the reshard.
        last: buffer of its last state that the nodes do not count [byte].
        mesh: the mesh.
    """
    passage, change = moved.passage, moved.change
    if not _is_of_result(moved):
        return 0
    counted = facts.buffers(passage.value) > 0
    freed = change.before.local_bytes(change.type, mesh) if counted else 0
    return max(last - freed, 0)


def read_beside_bytes(facts: Facts, plan: LoweredPlan) -> int:
    """Bytes that are read by updates of arguments which run beside the last reshards of results.

    A scheduler that hides latencies puts there what no reshard waits for: updates whose results
    stay in their state. The gradients that they read are kept until then.
    """
    flat = facts.flat
    moved = {r.passage.site.position for r in plan.reshards if _is_of_result(r)}
    others = facts.overwriting - moved
    read = _read_for(facts, others) - _read_for(facts, moved)
    total = 0
    for v in sorted(read - facts.in_place - facts.on_host):
        state, ended = plan.states[v], facts.spans[v][1] < flat.clock
        if facts.lifetimes.owns[v] and state is not None and ended:
            total += state.local_bytes(flat.values[v].type, plan.mesh)
    return total


def _read_for(facts: Facts, results: Collection[int]) -> set[int]:
    """Values that the kernels read which make some results, by their positions."""
    flat, read = facts.flat, set[int]()
    left = [v for k in results if isinstance(v := flat.outputs[k], int)]
    while left:
        op = flat.made_by(left.pop())
        new = {v for v in op.reads if v not in read} if op else set[int]()
        read |= new
        left += [v for v in new if not facts.lifetimes.owns[v] or v in facts.in_place]
    return read
