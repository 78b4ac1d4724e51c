"""What the plan store is asked for, and under which names: everything that decides an answer.

A name is a digest of the code of this program, of the libraries that decide, and of all that the
answer is computed from. What changes any of them changes the name, and the old entry is not met
again. A store that cannot be used is said so once; planning goes on without it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import sys
import warnings
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, final

import msgspec
import numpy as np
from numpy.typing import NDArray

from costmodel import Cluster
from ir import Mesh, Sharding

from ..errors import PlanError
from ..options import Options
from .database import Store, store_path
from .warning import StoreWarning

PACKAGES = ("costmodel", "ir", "planner", "profiles", "substitutions")
LIBRARIES = ("egglog", "highspy", "jax", "jaxlib", "msgspec", "networkx", "numba", "numpy",
             "optax", "pulp", "z3-solver")  # fmt: skip
SOURCES = (".py", ".json", ".gz", ".yaml")
LARGEST_BYTES = 1 << 30  # once decompressed
Record = TypeVar("Record")


@functools.lru_cache(maxsize=1)
def code_digest() -> str:
    """Names the sources of this program, the libraries that decide, and Python."""
    found = hashlib.sha256(repr(sys.version_info).encode())
    root = Path(__file__).resolve().parents[3]
    for package in PACKAGES:
        files = (root / package).rglob("*")
        for path in sorted(file for file in files if file.suffix in SOURCES):
            found.update(path.relative_to(root).as_posix().encode() + b"\0")
            found.update(path.read_bytes() + b"\0")
    for library in LIBRARIES:
        found.update(f"{library} {importlib.metadata.version(library)}\0".encode())
    return found.hexdigest()


def key_of(*parts: object) -> str:
    """Key of a result computed from plain records, shardings and clusters."""
    data = msgspec.json.encode(parts, enc_hook=_plain, order="deterministic")
    return hashlib.sha256(code_digest().encode() + data).hexdigest()


def array_name(array: NDArray[Any]) -> list[object]:
    """What names an array in a key."""
    shaped: Any = np.ascontiguousarray(array)
    content = hashlib.blake2b(shaped, digest_size=16).hexdigest()
    return [str(shaped.dtype), shaped.shape, content]


def _plain(value: object) -> object:
    match value:
        case Cluster():
            return [value.to_dict(), value.digest]
        case Options():
            kept = {name: getattr(value, name) for name in Options.__dataclass_fields__}
            return {name: kept[name] for name in sorted(kept) if name != "cache"}
        case Mesh():
            return value.axes
        case Sharding():
            return str(value)
        case np.ndarray():
            return array_name(value)
        case _:
            raise TypeError(f"{type(value).__name__} has no name in the plan store")


@final
@dataclass
class Memory:
    """A plan store, or nothing; the first trouble with it ends its use.

    hits: entries found, by kind.
    """

    store: Store | None
    hits: dict[str, int] = field(default_factory=dict[str, int])

    def get(self, kind: str, key: str, record: type[Record]) -> Record | None:
        """A record of some form; None if none is held, or it is not of that form."""
        if self.store is None:
            return None
        try:
            packed = self.store.get(kind, key)
        except PlanError as error:
            self._give_up(error)
            return None
        try:
            data = None if packed is None else _unpacked(packed)
            found = None if data is None else msgspec.msgpack.decode(data, type=record)
        except (ValueError, zlib.error, RecursionError):  # also text that is not UTF-8
            return None
        if found is not None:
            self.hits[kind] = self.hits.get(kind, 0) + 1
        return found

    def put(self, kind: str, key: str, record: object) -> None:
        """Keeps a record."""
        if self.store is None:
            return
        try:
            self.store.put(kind, key, zlib.compress(msgspec.msgpack.encode(record), 3))
        except PlanError as error:
            self._give_up(error)

    def _give_up(self, error: PlanError) -> None:
        self.store = None
        text = f"planning without the plan store: {error}"
        warnings.warn(StoreWarning(" ".join(text.split())), stacklevel=2)


def memory_of(options: Options) -> Memory:
    """The store that some options ask for."""
    return Memory(Store(store_path()) if options.cache else None)


def _unpacked(packed: bytes) -> bytes:
    """Decompressed data of bounded size."""
    stream = zlib.decompressobj()
    data = stream.decompress(packed, LARGEST_BYTES)
    if not stream.eof:
        raise zlib.error("is too large or cut short")
    return data
