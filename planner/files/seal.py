"""A seal on the files that this planner writes: whatever changed them since is noticed.

The figures of a plan could only be held against its decisions by working them out anew. So a file
says a digest of all that it says; a file with another was damaged, or edited by hand.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

from ..common.errors import PlanError

Record = TypeVar("Record", bound=msgspec.Struct)


def sealed(file: msgspec.Struct, where: str) -> bytes:
    """The bytes of a record with a seal, one field a line; the same record gives the same ones.

    Raises:
        PlanError: if what it says could not be read again.
    """
    try:  # numbers as they will be read: a whole one in place of a float is not the same text
        file = msgspec.json.decode(_encoded(file), type=type(file))
    except msgspec.MsgspecError as error:
        raise PlanError(
            f"cannot be written so that it can be read again: {error}", kind="plan-file",
            where=where, remedy="report this with the program that was planned",
        ) from error  # fmt: skip
    body = _encoded(file)
    whole = body[:-1] + f',"seal":"{_digest(body)}"}}'.encode()
    return msgspec.json.format(whole, indent=0) + b"\n"


def opened(data: bytes, written: type[msgspec.Struct], record: type[Record], where: str) -> Record:
    """The record in some bytes.

    Args:
        data: the bytes.
        written: the record with a field `seal` after its own.
        record: what is wanted.
        where: the file.

    Raises:
        PlanError: if its seal is not that of what it says.
        ValueError, RecursionError: if it is malformed.
    """
    *fields, seal = msgspec.structs.astuple(msgspec.json.decode(data, type=written))
    found = record(*fields)
    if seal != _digest(_encoded(found)):
        raise PlanError(
            "was changed after it was written: its seal is not that of what it says",
            kind="plan-file", where=where,
            remedy="take the file as it was written, or plan again; pins= asks for other shardings",
        )  # fmt: skip
    return found


def _encoded(file: msgspec.Struct) -> bytes:
    return msgspec.json.encode(file, order="deterministic")


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
