"""Seconds, bytes and shardings as text."""

from __future__ import annotations

from ir import Mesh, Sharding


def seconds_text(seconds: float) -> str:
    """Seconds with a unit that reads well."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1 or unit == "us":
            return f"{seconds * scale:.3g} {unit}" if seconds * scale < 1000 else f"{seconds:.4g} s"
    return f"{seconds:.3g} s"


def bytes_text(count: float) -> str:
    """Bytes with a decimal unit."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count:.0f} B"


def dollars_text(dollars: float) -> str:
    """Dollars to three digits, or to the cent from ten dollars on."""
    return f"${dollars:,.2f}" if dollars >= 10 else f"${dollars:.3g}"


def share_text(share: float) -> str:
    """A share in per cent, with digits behind the point only below one per cent."""
    return f"{share:.0%}" if share >= 0.01 or share <= 0.0 else f"{100 * share:.2g}%"


def sharding_text(state: Sharding, mesh: Mesh) -> str:
    """A sharding with the size of each axis, such as `[x=8, -]`."""
    dims = ("*".join(f"{axis}={mesh.product((axis,))}" for axis in axes) for axes in state.dims)
    return f"[{', '.join(dim or '-' for dim in dims)}]"


def printable(line: str) -> str:
    """A line without control characters: names come from programs and files of others."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
