"""What a kind of file is: some sound ones, how to change them, and what to do with the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from .damage import damaged

Files = Mapping[str, bytes]
# A way to change the files: a name for what was done, and the files after it.
Change = Callable[[Random, Files], tuple[str, Files]]

EQUAL, ACCEPTED = "equal", "accepted"


class WrongError(AssertionError):
    """A changed file was taken for something that it cannot be."""


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    seeds: sound files; the first name of each is the one that is read.
    use: reads the files in a folder and uses what they say, given the sound ones; `EQUAL` where
        that is what the sound ones say, `ACCEPTED` where it is something else that makes sense.
    changes: of the files, beside damage to their bytes.
    share: of the mutants.
    command: of `meshwright` that reads the `{file}`, or the user's cache folder; none if empty.
    """

    name: str
    seeds: tuple[Files, ...]
    use: Callable[[Path, Files, Random], str]
    changes: tuple[Change, ...] = ()
    share: float = 1.0
    command: tuple[str, ...] = ()


def mutant(kind: Kind, rng: Random) -> tuple[Files, str, Files]:
    """A seed of a kind, how it was changed, and what came of it."""
    seed = rng.choice(kind.seeds)
    if kind.changes and rng.random() < 0.6:
        how, files = rng.choice(kind.changes)(rng, seed)
    else:
        name = rng.choice(tuple(seed))
        how, data = damaged(rng, seed[name])
        how, files = f"bytes of {name}: {how}", {**seed, name: data}
    return seed, how, files


def expect(held: bool, message: str) -> None:
    """Raises `WrongError` where something does not hold."""
    if not held:
        raise WrongError(message)
