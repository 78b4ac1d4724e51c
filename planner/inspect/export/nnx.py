"""`nnx`: metadata of Flax NNX's variables, as a Python module that needs JAX and Flax alone."""

from __future__ import annotations

import re

from ..analysed_plan import AnalysedPlan
from .record import Exported, Subject
from .source_text import axes_text, list_text, literal, module_text, row_text, tuple_text
from .specs import parameters, patterns


def nnx_metadata(subject: Subject) -> Exported:
    """The module at the path: patterns of variables' paths, and functions that use them."""
    analysed = subject.analysed
    notes = (
        "metadata say where parameters lie; optimizer state, the batch and what runs between them "
        "are up to the compiler",
    )
    text = module_text(_docstring(analysed), "nnx_metadata.py", _tables(analysed))
    return Exported(text, (), notes)


def _docstring(analysed: AnalysedPlan) -> str:
    name = re.sub(r"\W", "_", analysed.program.name)
    title = re.sub(r"[^\w. :-]", "_", analysed.cluster.name)
    return f'''"""Shardings of the parameters of {name} on {title}, for Flax NNX.

Planned by Meshwright.

    mesh = make_mesh()
    model = create(lambda: Model(nnx.Rngs(0)), mesh)  # each shard is made where it lies

Or `annotate(model)` sets the metadata of a model that is there: `nnx.get_partition_spec` and
`nnx.get_named_sharding` then give the plan's shardings of its state. RULES are what
`nnx.with_partitioning` takes where a layer is written.
"""'''


def _tables(analysed: AnalysedPlan) -> str:
    mesh = ", ".join(f"{literal(axis)}: {size}" for axis, size in analysed.program.mesh)
    states = {path: state for path, (_, state) in parameters(analysed).items()}
    rows = [
        row_text([literal(pattern), tuple_text([*map(axes_text, state.dims)])])
        for pattern, state in patterns(states)
    ]
    about = "# Regular expression of paths -> mesh axes of each dimension; the first match holds.\n"
    return f"MESH = {{{mesh}}}\n{about}{list_text('RULES', rows)}\n"
