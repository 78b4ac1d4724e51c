"""Guards against a user's own `ir.py` (or another short name) hiding a package of ours."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

SIBLINGS = ("costmodel", "ir", "profiles", "substitutions")


def check_not_shadowed() -> None:
    """Verifies that the packages the planner imports are the ones installed beside it.

    The names are short, and Python takes the first match on `sys.path`, so that a script's
    folder with an `ir.py` in it would otherwise fail later, with a message about that file.

    Raises:
        ImportError: if a sibling package is missing or another file or folder is found first.
    """
    home = Path(__file__).resolve().parents[2]
    for name in SIBLINGS:
        found = _location(name)
        if found is None:
            raise ImportError(
                f"meshwright: package `{name}` is missing from {home}; the installation is "
                "incomplete, install meshwright again"
            )
        if found != home / name:
            raise ImportError(
                f"meshwright: `import {name}` finds {found}, not {home / name}; rename that file "
                f"or folder, run from another folder, or put {home} before {found.parent} on "
                "sys.path"
            )


def _location(name: str) -> Path | None:
    """Folder of the package, or file of the module, that `import name` would load."""
    loaded = sys.modules.get(name)
    # A module made by hand has no spec, and `find_spec` refuses it.
    if loaded is not None and loaded.__spec__ is None:
        return Path(getattr(loaded, "__file__", None) or f"<{name} in sys.modules>")
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    places = spec.submodule_search_locations or (spec.origin or f"<{name}>",)
    return Path(next(iter(places))).resolve()
