"""The frame of every command: standard output for the answer, errors without traceback."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from .answer import Answer, discard_stdout, show
from .failure import WRONG_USE, Failure, failure_of, one_line


class Command(TyperCommand):
    """A command whose function returns an `Answer`."""

    def invoke(self, ctx: Any) -> Any:
        as_json = bool(ctx.params.get("as_json"))
        try:
            with contextlib.redirect_stdout(sys.stderr):
                answer = super().invoke(ctx)
        except typer.Exit:
            raise
        except (Exception, KeyboardInterrupt) as error:
            if ctx.find_root().params.get("show_traceback"):
                traceback.print_exception(error)
            answer = failure_of(error)
        assert isinstance(answer, (Answer, Failure))
        raise typer.Exit(_shown(answer, as_json=as_json))


class Group(TyperGroup):
    """All commands; wrong use of any is one line or one JSON object too."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        try:
            status = super().main(
                words, prog_name, complete_var, False, windows_expand_args, **extra
            )
        except KeyboardInterrupt as error:
            status = _shown(failure_of(error), as_json="--json" in words)
        except Exception as error:
            status = _misused(error, words)
        if not standalone_mode:
            return status
        sys.exit(status if isinstance(status, int) else 0)


def _misused(error: Exception, words: list[str]) -> int:
    """Reports a usage error of the option parser, which may be Click's or Typer's own copy."""
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{error}\n")
        return WRONG_USE
    if not hasattr(error, "format_message"):
        return _shown(failure_of(error), as_json="--json" in words)
    message = one_line(getattr(error, "format_message")()).rstrip(".")  # noqa: B009
    path = getattr(getattr(error, "ctx", None), "command_path", "meshwright")
    failure = Failure("usage", message, path, f"see `{path} --help`")
    return _shown(failure, as_json="--json" in words)


def _shown(answer: Answer | Failure, *, as_json: bool) -> int:
    try:
        return show(answer, as_json=as_json)
    except OSError as error:  # a full disk behind standard output
        discard_stdout()
        return show(failure_of(error), as_json=False)
