"""HiGHS without its log."""

from __future__ import annotations

import highspy


class QuietHighs(highspy.Highs):
    """A HiGHS solver that prints nothing.

    The constructor of highspy 1.16 registers callbacks, which prints a version line before the
    caller can set `output_flag`.
    """

    def enableCallbacks(self) -> None:  # noqa: N802  the library's name
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()
