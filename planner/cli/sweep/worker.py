"""A process that plans rows: tasks come in and rows go out as lines of JSON."""

from __future__ import annotations

import json
import signal
import sys

from ..answer import leave_terminal, own_stdout
from .row import plan_row


def main() -> None:
    """Plans until its input ends; Ctrl-C is for the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    own_stdout()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(plan_row(json.loads(line))) + "\n")
        sys.stdout.flush()
    leave_terminal()


if __name__ == "__main__":
    main()
