"""Plans a program again from its plan file alone: on another machine, with other wishes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from costmodel import Cluster

from .errors import PlanError
from .flatten import flatten
from .fusion import analyse
from .intra.facts import Facts
from .mesh_search import Candidate
from .options import Options, wishes
from .planfile import BaselineRow, CandidateRow, CollectiveRow, PlanFile, StageRow, rows_of
from .program import Program, roles_of
from .search import Found, Search
from .why import Why


def replanned(
    why: Why,
    cluster: Cluster,
    options: Options,
    progress: Callable[[str], None] | None = None,
) -> PlanFile:
    """The plan of the same program on a cluster, with options.

    The program is as the file carries it: a step keeps its number of micro-batches.

    Raises:
        PlanError: if nothing fits, or the wishes leave no choice.
    """
    if len(why.file.stages) > 1:
        raise PlanError(
            f"has {len(why.file.stages)} stages; only programs of one stage are planned from a "
            "file", kind="bad-plan", where=why.where, remedy="run `meshwright plan` again",
        )  # fmt: skip
    flat = flatten(why.graph)
    names = {v: item.name for v, item in zip(flat.inputs, why.graph.inputs, strict=True)}
    resolved = wishes(options, names, {v: flat.values[v].type.rank for v in names})
    heads = sum(role == "constant" for role in why.file.roles)
    donated = frozenset(heads + a for a in why.file.donated)
    facts = Facts(flat, analyse(flat), why.file.ties, donated)
    program = Program(facts, roles_of(why.file.roles, flat), resolved)
    search = Search(program, cluster, options, progress or (lambda _: None))
    return _file(why.file, cluster, options, search.run(), search.limit)


def _file(
    file: PlanFile, cluster: Cluster, options: Options, found: Found, limit: float
) -> PlanFile:
    best = found.best
    sums = best.account
    ops, values = rows_of(best.decisions)
    layers = file.stages[0].layers if file.stages else (0, 0)
    stage = StageRow(
        layers, (0, cluster.num_devices), dict(best.mesh.axes), sums.step_s, sums.peak_bytes,
        "as written",
    )  # fmt: skip
    return msgspec.structs.replace(
        file,
        cluster=cluster.to_dict(),
        mesh=best.mesh.axes,
        step_s=sums.step_s,
        compute_s=sums.compute_s,
        communication_s=sums.communication_s,
        peak_bytes=sums.peak_bytes,
        argument_bytes=sums.argument_bytes,
        limit_bytes=limit,
        room_bytes=best.builder.cache.reshard.room_bytes,
        lower_bound_s=max(found.lower_bound_s, 0.0),
        decided_ops=len(set(best.built.op_node.values())),
        stop=found.stop.name,
        origin=best.name,
        inputs=tuple(str(s) for s in best.decisions.inputs),
        outputs=tuple(str(s) for s in best.decisions.outputs),
        pins=options.pins,
        forbidden=options.forbidden,
        stages=(stage,),
        baselines={
            name: BaselineRow(b.step_s, b.peak_bytes, b.fits, b.mesh)
            for name, b in sorted(found.baselines.items())
        },
        collectives=tuple(
            CollectiveRow(c.kind, c.axes, c.group_size, c.bytes, c.count, c.seconds, c.cause)
            for c in sums.collectives
        ),
        ops=ops,
        values=values,
        candidates=candidates(found, best),
    )


def candidates(found: Found, best: Candidate) -> tuple[CandidateRow, ...]:
    """The best plan of every other mesh."""
    return tuple(
        CandidateRow(str(c.mesh), c.account.step_s, c.account.peak_bytes)
        for c in found.candidates
        if c.name == "search" and c is not best
    )
