"""The public names of `meshwright`, which are also those of `planner`, loaded when used."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import lazy_loader

from .garbage_collection import seldom_collected

STUB = Path(__file__).parents[2] / "meshwright" / "__init__.pyi"
_LINE = re.compile(r"^from planner\.(\S+) import (\w+) as \2$", re.MULTILINE)


def lazy_surface() -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package that shows the names of the stub file."""
    names: dict[str, list[str]] = {}
    for module, name in _LINE.findall(STUB.read_text(encoding="utf-8")):
        names.setdefault(module, []).append(name)
    loaded, listed, every = lazy_loader.attach("planner", submod_attrs=names)

    def attribute(name: str) -> object:
        with seldom_collected():  # modules are many objects, which all stay
            return loaded(name)

    return attribute, listed, every
