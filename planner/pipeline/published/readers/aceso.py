"""Reads Aceso's profile database: a folder or .tar.gz of CSV files.

    MODEL_mbsB_tpT_algoA.csv   op_name, forward us, backward us, input, output, weights,
                               activations, reserved in forward and in backward, all MB
    p2p_intra_node.csv, p2p_inter_node.csv   GB/s by message size in powers of two of MB

The first way of splitting an op (`algo0`) is read; collectives are inside the times.

Source: Liu et al., "Aceso", EuroSys 2024, and its released V100 database.
"""

from __future__ import annotations

import csv
import io
import re
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..graph import Edge, Layer, LayerGraph, Variant, bad_profile, check_number

US, MB, GB = 1e-6, float(1 << 20), 1e9
COLUMNS = (
    "forward-compute", "backward-compute", "input_size", "output_size", "weights", "activations",
    "fwd_reserved", "bwd_reserved",
)  # fmt: skip
_FILE = re.compile(r"(.+)_mbs(\d+)_tp(\d+)_algo0\.csv")
LARGEST_BYTES = 8 << 20
# Float16 weights and gradients, float32 weights and two moments: 16 bytes a parameter of 2.
STATE_OVER_WEIGHTS = 8.0
# Layers of the models; the database holds one layer of each.
LAYERS = {"350M": 24, "1_3B": 24, "2_6B": 32, "6_7B": 32, "13B": 40}
HEAD, LAYER = 1, 13

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Database:
    """Ops of one model, the layers written out.

    ops: names in order.
    layers: how many times the repeated part stands there.
    table: by (micro-batch on one replica, tensor-parallel degree), [8, ops] in seconds and bytes,
        rows as in `COLUMNS`.
    intra_bytes_per_s, inter_bytes_per_s: by power of two of MB.
    """

    model: str
    ops: tuple[str, ...]
    layers: int
    table: dict[tuple[int, int], Floats]
    intra_bytes_per_s: tuple[float, ...]
    inter_bytes_per_s: tuple[float, ...]


def is_database(path: Path) -> bool:
    """Whether a path looks like a database."""
    return path.is_dir() or path.name.endswith((".tar.gz", ".tgz"))


def read(path: Path, *, model: str, layers: int | None = None) -> Database:
    """The database's entries of one model.

    Args:
        path: folder or archive; an archive is read, not unpacked.
        model: such as `gpt_1_3B`.
        layers: how often the repeated layer stands there; known for the published sizes.

    Raises:
        PlanError: if the model, a column or a number is missing or bad.
    """
    files = _files(path)
    found: dict[tuple[int, int], Floats] = {}
    names: tuple[str, ...] | None = None
    size = model.partition("_")[2]
    count = layers or LAYERS.get(size)
    if count is None:
        raise bad_profile(path.name, f"how many layers '{model}' has is not known",
                          "give --layers")  # fmt: skip
    for name in sorted(files):
        match = _FILE.fullmatch(name)
        if match is None or match[1] != model:
            continue
        ops, rows = _table(name, files[name])
        if names is not None and ops != names:
            raise bad_profile(name, "has other ops than the model's other files")
        names = ops
        found[int(match[2]), int(match[3])] = _written_out(rows, count)
    if names is None:
        models = sorted({m[1] for name in files if (m := _FILE.fullmatch(name))})
        raise bad_profile(path.name, f"has no model '{model}'", f"it has {', '.join(models)}")
    full = (*names[:HEAD], *names[HEAD : HEAD + LAYER] * count, *names[HEAD + LAYER :])
    links = [_links(f"p2p_{kind}_node.csv", files) for kind in ("intra", "inter")]
    return Database(model, full, count, found, links[0], links[1])


def _files(path: Path) -> dict[str, str]:
    try:
        if path.is_dir():
            return {f.name: f.read_text("utf-8") for f in sorted(path.glob("*.csv"))}
        found: dict[str, str] = {}
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                if member.isfile() and member.name.endswith(".csv"):
                    if member.size > LARGEST_BYTES:
                        raise bad_profile(path.name, f"'{member.name}' is too large")
                    data = archive.extractfile(member)
                    assert data is not None
                    found[Path(member.name).name] = data.read().decode("utf-8")
        return found
    except (OSError, EOFError, tarfile.TarError, UnicodeDecodeError, zlib.error) as error:
        raise bad_profile(path.name, f"cannot be read: {error}", "check path and file") from error


def _table(name: str, text: str) -> tuple[tuple[str, ...], Floats]:
    rows = _rows(name, text)
    if not rows or tuple(rows[0][1:]) != COLUMNS:
        raise bad_profile(name, f"expected the columns op_name, {', '.join(COLUMNS)}")
    ops: list[str] = []
    values: list[list[float]] = []
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(COLUMNS) + 1:
            raise bad_profile(f"{name}:{number}", f"has {len(row)} columns, expected "
                              f"{len(COLUMNS) + 1}", "the line may be cut off")  # fmt: skip
        ops.append(row[0])
        values.append([_number(f"{name}:{number}", cell) for cell in row[1:]])
    if len(ops) <= HEAD + LAYER:
        raise bad_profile(name, f"has {len(ops)} ops, expected more than {HEAD + LAYER}",
                          "only models of the GPT form are read")  # fmt: skip
    units = np.array([US, US, *[MB] * 6])
    return tuple(ops), (np.array(values) * units).T


def _rows(name: str, text: str) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise bad_profile(name, f"is not CSV: {error}") from error


def _number(where: str, cell: str) -> float:
    try:
        return check_number(where, "a cell", float(cell))
    except ValueError as error:
        raise bad_profile(where, f"found {cell!r}, expected a number of at least 0") from error


def _written_out(rows: Floats, layers: int) -> Floats:
    body = np.tile(rows[:, HEAD : HEAD + LAYER], layers)
    return np.concatenate([rows[:, :HEAD], body, rows[:, HEAD + LAYER :]], axis=1)


def _links(name: str, files: dict[str, str]) -> tuple[float, ...]:
    if name not in files:
        raise bad_profile(name, "is missing from the database")
    rows = _rows(name, files[name])
    if len(rows) != 2 or len(rows[0]) != len(rows[1]):
        raise bad_profile(name, "expected two rows, message sizes and GB/s")
    rates = tuple(_number(name, cell) * GB for cell in rows[1])
    if not all(rates):
        raise bad_profile(name, "has a rate of 0")
    return rates


def layer_graph(database: Database, *, microbatch: int) -> LayerGraph:
    """The ops as a graph, for planners that know no database.

    Args:
        database: of a model.
        microbatch: samples on one replica, one of those measured.

    Raises:
        PlanError: if that micro-batch was not measured.
    """
    degrees = sorted(t for b, t in database.table if b == microbatch)
    if not degrees:
        measured = sorted({b for b, _ in database.table})
        raise bad_profile(database.model, f"was not measured at micro-batch {microbatch}",
                          f"choose one of {measured}")  # fmt: skip
    layers: list[Layer] = []
    for v, name in enumerate(database.ops):
        variants: list[tuple[int, tuple[Variant, ...]]] = []
        for t in degrees:
            f, b, enter, _, weights, kept, *_ = (
                float(x) for x in database.table[microbatch, t][:, v]
            )
            state = STATE_OVER_WEIGHTS * weights
            plain = Variant("none", f, b, weights, kept, state)
            less = min(enter, kept)
            again = Variant("full", f, f + b, weights, less, state + kept - less)
            variants.append((t, (plain, again)))
        layers.append(Layer(name, tuple(variants)))
    sent = database.table[microbatch, degrees[0]][3]
    edges = tuple(Edge(v, v + 1, float(sent[v])) for v in range(len(layers) - 1))
    name = f"{database.model}_mbs{microbatch}"
    return LayerGraph(name, "aceso", microbatch, tuple(layers), edges)
