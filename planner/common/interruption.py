"""What Ctrl-C does to a search: the best plan found by then is kept."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import FrameType

ADVICE = "planning was interrupted: this is the best plan found by then, a better one may exist"


@dataclass
class Interruption:
    """Whether Ctrl-C ended a search.

    keeps: whether a search that is interrupted goes on to its end with the best plan found so far;
        if not, `KeyboardInterrupt` leaves it.
    asked: whether Ctrl-C was pressed.
    happened: whether the search was interrupted.
    """

    keeps: bool = False
    asked: bool = False
    happened: bool = False

    def kept(self, *, found: bool) -> bool:
        """Notes a `KeyboardInterrupt`; whether the search ends with what was found.

        Args:
            found: whether there is a plan.
        """
        self.happened = self.happened or self.keeps
        return self.keeps and found

    @contextlib.contextmanager
    def listening(self) -> Generator[None]:
        """Notes Ctrl-C, which raises `KeyboardInterrupt` as ever.

        A handler that the user has set, and other threads than the main one, are left alone.
        """
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return

        def note(number: int, frame: FrameType | None) -> None:
            self.asked = True
            signal.default_int_handler(number, frame)

        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def checked(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """A receiver of progress that interrupts the search if the first exception was lost.

        A `KeyboardInterrupt` that is raised in a callback of a library, such as a hook of the
        garbage collector, is printed there and goes no further.
        """

        def told(line: str) -> None:
            if self.asked and not self.happened:
                raise KeyboardInterrupt
            say(line)

        return told
