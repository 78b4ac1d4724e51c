"""The versions of JAX that are read, and what is said of any other."""

from __future__ import annotations

# Those that the tests were run with.
KNOWN = ((0, 10), (0, 11), (0, 12))


def known() -> str:
    """Them in words, and what to do where another one is installed."""
    versions = [".".join(map(str, version)) for version in KNOWN]
    above = f"{KNOWN[-1][0]}.{KNOWN[-1][1] + 1}"
    return (
        f"Meshwright reads JAX {', '.join(versions[:-1])} and {versions[-1]}; install one of them: "
        f"pip install 'jax>={versions[0]},<{above}', or a newer Meshwright"
    )
