"""The planner's errors: each says what, where, and what to do."""

from __future__ import annotations

from typing import Any

from ir import IRError, TraceError
from profiles import ProfileError
from substitutions import RuleError

LONGEST = 1500  # characters of each part of a message


class PlanError(ValueError):
    """Planning, loading or running a plan failed because of its arguments or files.

    kind: a short word for programs (`does-not-fit`, `bad-pin`, `plan-file`, ...).
    where: file, argument or tensor.
    remedy: what the user can do.
    needs_bytes: memory of a device that some plan would fit in [bytes]; 0 for other errors.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        where: str = "",
        remedy: str = "",
        needs_bytes: float = 0.0,
    ) -> None:
        message, where, remedy = _bounded(message), _bounded(where), _bounded(remedy)
        self.message, self.kind, self.where, self.remedy = message, kind, where, remedy
        self.needs_bytes = needs_bytes
        parts = [f"{where}: {message}" if where else message]
        if remedy:
            parts.append(remedy)
        # Not `super()`: between the two may stand an error of a lower package.
        ValueError.__init__(self, "; ".join(parts))


class ShortError(PlanError):
    """No plan fits, even with everything split over all devices, which takes `needs_bytes`."""


class HeldError(ShortError):
    """What a step holds from its start to its end does not fit, whatever else is chosen."""


class IndivisibleError(PlanError):
    """A batch cannot be cut into this number of micro-batches."""


class NotFollowedWarning(UserWarning):
    """The program asks for a placement that its plan does not follow."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended the planning.

    plan: the best plan found by then, a `planner.Plan`.
    """

    def __init__(self, plan: Any) -> None:
        super().__init__("planning was interrupted; `plan` of this exception is the best by then")
        self.plan = plan


# Errors of lower packages as public functions raise them; see `planner.common.surface`.


class ArgumentError(PlanError, TypeError):
    """A public function is called with an argument missing, unknown or of another type."""


class NotTracedError(PlanError, TraceError):
    """A function cannot be traced with its arguments."""


class NotAProgramError(PlanError, IRError):
    """A traced or rewritten program, a mesh or a sharding breaks a rule of graphs."""


class BadProfileError(PlanError, ProfileError):
    """A profile or a cluster description is missing, malformed or implausible."""


class BadRuleError(PlanError, RuleError):
    """A substitution rule or a rule file is malformed."""


def _bounded(text: str) -> str:
    """A text cut to `LONGEST` characters: a name in a damaged file may be very long."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 100]} ... {text[-90:]}"
