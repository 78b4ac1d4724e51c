"""The mesh as a picture: every device in the grid, with gaps between hosts."""

from __future__ import annotations

import math

from costmodel import Cluster
from ir import Mesh

from .markup import Markup, el

MOST_DEVICES = 256
WIDTH = 400.0


def draw_mesh(mesh: Mesh, cluster: Cluster) -> Markup | None:
    """Draws rows along the first axis; None if there are too many devices to draw."""
    if mesh.num_devices > MOST_DEVICES:
        return None
    rows = mesh.sizes[0] if len(mesh.sizes) > 1 else 1
    columns = mesh.num_devices // rows
    if rows == 1 and columns > 32:  # a flat mesh of many devices is wrapped
        columns = math.gcd(columns, 32)
        rows = mesh.num_devices // columns
    size = min(46.0, (WIDTH - 8) / columns)
    shapes: list[Markup] = []
    for device in range(mesh.num_devices):
        row, column = divmod(device, columns)
        host = device // cluster.devices_per_host
        x, y = 4 + column * size, 4 + row * size
        look = "host-a" if host % 2 == 0 else "host-b"
        where = el("title", f"device {device}, host {host}")
        shapes.append(
            el("rect", where, x=x, y=y, width=size - 3, height=size - 3, rx=4, class_=look)
        )
        if size >= 22:
            middle = {"x": x + size / 2 - 1.5, "y": y + size / 2 + 3, "text_anchor": "middle"}
            shapes.append(el("text", str(device), **middle))
    height = rows * size + 8
    return el(
        "svg", *shapes, view_box=f"0 0 {columns * size + 8:.0f} {height:.0f}", role="img",
        aria_label=f"{mesh.num_devices} devices as mesh {mesh}",
        style=f"width:{columns * size + 8:.0f}px",
    )  # fmt: skip
