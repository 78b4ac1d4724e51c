# pyright: basic
"""Prints the digest of each small program; the same under every version of Python and JAX.

Left out is what JAX differentiates otherwise from version to version.
"""

from __future__ import annotations

from ir import digest
from ir.trace import trace

from .smoke_programs import PROGRAMS


def main() -> None:
    for name, (fn, args) in PROGRAMS.items():
        if name == "trained":
            continue
        print(name, digest(trace(fn, *args).graph))


if __name__ == "__main__":
    main()
