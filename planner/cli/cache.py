"""`meshwright cache`: show and clear the plan store."""

from __future__ import annotations

from rich.text import Text

from ..common.store.database import Store, StoreInfo, store_path
from ..common.units_text import bytes_text
from .answer import Answer
from .page import page
from .parameters import AsJson
from .table import table

WORDS = {"plan": "plans", "solution": "solved problems", "stage": "pipeline stages"}


def info_command(as_json: AsJson = False) -> Answer:
    """Show the contents of the plan store.

    Plans and solved problems are stored in one file of your cache folder. When it is full, the
    least recently used are removed. Exit status: 0 shown, 2 the file cannot be used.
    """
    return _answer(Store(store_path()).info())


def clear_command(as_json: AsJson = False) -> Answer:
    """Remove all plans from the plan store; a damaged file is deleted.

    Exit status: 0 done, 2 the file is of another program or cannot be written.
    """
    store = Store(store_path())
    store.clear()
    return _answer(store.info())


def _answer(info: StoreInfo) -> Answer:
    data = {
        "path": str(info.path), "limit_bytes": info.limit_bytes,
        "entries": info.entries, "bytes": info.bytes,
    }  # fmt: skip
    rows = [
        (WORDS.get(kind, kind), str(count), bytes_text(info.bytes[kind]))
        for kind, count in info.entries.items()
    ]
    used = f"{bytes_text(sum(info.bytes.values()))} of at most {bytes_text(info.limit_bytes)}"

    def text(width: int | None) -> Text:
        head = page(f"{info.path}: {used}")
        if not rows:
            return head
        return Text("\n").join([head, table(("", "entries", "bytes"), rows, width)])

    return Answer(data, text)
