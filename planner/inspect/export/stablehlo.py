"""`stablehlo`: the program with Shardy annotations, and `jax.export`'s bytes beside it."""

from __future__ import annotations

from .record import Exported, Subject, json_bytes
from .specs import arguments, spec_of


def stablehlo(subject: Subject) -> Exported:
    """MLIR text at the path; beside it the serialized program and how to call it."""
    text, data = subject.serialize()
    analysed = subject.analysed
    call = {
        "format": "meshwright-call",
        "version": 1,
        "mesh": [[axis, size] for axis, size in analysed.program.mesh],
        "arguments": [
            {"name": name, "sharding": spec_of(state)}
            for name, state in arguments(analysed).items()
        ],
        "results": [spec_of(state) for state in analysed.decisions.outputs],
    }
    notes = ("donated arguments are not donated when the exported program is called",)
    return Exported(
        text.encode(), ((".jaxexport", data), (".call.json", json_bytes(call))),
        notes if analysed.program.donated else (),
    )  # fmt: skip
