"""`meshwright clusters` and `meshwright version`."""

from __future__ import annotations

import dataclasses
import platform
from importlib.metadata import version

from rich.text import Text

import costmodel
from profiles import ProfileError

from ..common.units_text import bytes_text
from ..common.version import VERSION
from .answer import Answer
from .parameters import AsJson
from .table import table

_USE = (
    "Use as COUNTxNAME or COUNTxNAME:PER_HOST, such as 8xh100 or 64xv100-16gb:8; host alone means "
    "the devices present. A YAML or JSON file describes any other machine."
)


def clusters_command(as_json: AsJson = False) -> Answer:
    """List the devices that a cluster may be made of."""
    note = ""
    try:
        found = costmodel.list_clusters()
    except ProfileError as error:
        found, note = costmodel.shipped_clusters(), f"without what was measured here: {error}"
    rows = [_row(item) for item in found]
    head = ("name", "memory", "bf16", "per host", "link", "network", "evidence", "tables")
    data = {
        "clusters": [dataclasses.asdict(item) for item in found], "use": _USE,
        "warnings": [note] if note else [],
    }  # fmt: skip
    end = f"\n\n{_USE}" + (f"\n\n{note}" if note else "")
    return Answer(data, lambda width: table(head, rows, width).append(end))


def _row(item: costmodel.ClusterSummary) -> tuple[str, ...]:
    flops = item.peak_bf16_flops
    return (
        item.name,
        bytes_text(item.memory_bytes),
        f"{flops / 1e12:.4g} TFLOP/s" if flops else "",
        str(item.devices_per_host),
        f"{item.link} {bytes_text(item.link_bytes_per_s)}/s",
        f"{item.network} {bytes_text(item.network_bytes_per_s)}/s",
        f"{item.evidence} {item.date}".strip(),
        ", ".join(item.measured_tables),
    )


def version_command(as_json: AsJson = False) -> Answer:
    """Print the versions of the planner, JAX and Python."""
    data = {"version": VERSION, "jax": version("jax"), "python": platform.python_version()}
    line = f"meshwright {VERSION} (JAX {data['jax']}, Python {data['python']})"
    return Answer(data, lambda _: Text(line))
