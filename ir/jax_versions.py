"""The tested versions of JAX."""

from __future__ import annotations

# Versions that the tests run with.
KNOWN = ((0, 10), (0, 11), (0, 12))


def known() -> str:
    """The tested versions in words, with the remedy for another one."""
    versions = [".".join(map(str, version)) for version in KNOWN]
    above = f"{KNOWN[-1][0]}.{KNOWN[-1][1] + 1}"
    return (
        f"Meshwright reads JAX {', '.join(versions[:-1])} and {versions[-1]}; install one of them: "
        f"pip install 'jax>={versions[0]},<{above}', or a newer Meshwright"
    )
