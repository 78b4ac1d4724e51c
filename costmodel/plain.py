"""YAML as plain data: numbers as in JSON, and no more of it than is written down."""

from __future__ import annotations

import re
from typing import Any

import yaml

MOST_ALIASES = 40  # each may name a part that names others: with many, a short file is a huge value


class PlainLoader(yaml.SafeLoader):
    """YAML 1.1 reads 3e10 as text; here it is a number, as in YAML 1.2 and JSON."""

    aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Composes one node, and counts references to earlier ones."""
        if self.check_event(yaml.AliasEvent):  # pyright: ignore[reportUnknownMemberType]
            self.aliases += 1
            if self.aliases > MOST_ALIASES:
                raise yaml.YAMLError(f"more than {MOST_ALIASES} aliases")
        return super().compose_node(parent, index)


PlainLoader.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType]
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def load_yaml(text: str) -> Any:
    """The value of a YAML or JSON text.

    Raises:
        ValueError: if it is neither.
    """
    try:
        return yaml.load(text, Loader=PlainLoader)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
