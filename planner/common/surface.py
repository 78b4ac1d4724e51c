"""The border of the public surface: every error of a call leaves it as a `PlanError`.

The packages below have errors of their own, which may not know of the planner. They leave as
classes that derive from both, so that `except PlanError` and `except TraceError` catch them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple, ParamSpec, TypeVar, get_type_hints

from ir import IRError, TraceError
from profiles import ProfileError
from substitutions import RuleError

from .errors import (
    ArgumentError,
    BadProfileError,
    BadRuleError,
    NotAProgramError,
    NotTracedError,
    PlanError,
)
from .fitting import fits

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=type)

LOWER = IRError | ProfileError | RuleError
# What Python raises where a value is not of the kind that a function takes.
MISUSED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
SPECIAL = ("__init__", "__str__", "_repr_html_")


class Twin(NamedTuple):
    """The planner's class for an error of a lower package, and what to do where it does not say."""

    lower: type[LOWER]
    ours: type[PlanError]
    kind: str
    remedy: str


# The first that fits holds.
TWINS = (
    Twin(TraceError, NotTracedError, "trace", "trace the function alone with jax.eval_shape"),
    Twin(IRError, NotAProgramError, "program", "report it with the function, it is a defect"),
    Twin(ProfileError, BadProfileError, "profile", "correct the cluster or its profile"),
    Twin(RuleError, BadRuleError, "rules", "correct the rule"),
)


def public(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose errors are `PlanError`s; exceptions of the user's code stay theirs."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except PlanError:
            raise
        except (IRError, ProfileError, RuleError) as error:
            found = _twin(error, _name(function))
            raise found.with_traceback(error.__traceback__) from error.__cause__
        except MISUSED as error:
            found = _misfit(function, args, kwargs)
            if found is None:
                raise
            raise found from error

    return call


def public_methods(cls: T) -> T:
    """The class with all that it shows made `public`: methods, properties and its constructor."""
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name not in SPECIAL:
            continue
        if isinstance(member, FunctionType):
            setattr(cls, name, public(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(cls, name, property(public(member.fget), doc=member.__doc__))
        elif isinstance(member, functools.cached_property):
            member.func = public(member.func)
    return cls


def _name(function: Callable[..., Any]) -> str:
    """What a user calls a function or method."""
    return function.__qualname__.removesuffix(".__init__")


def _twin(error: LOWER, where: str) -> PlanError:
    """The planner's error that says the same as one of a lower package."""
    _, ours, kind, remedy = next(twin for twin in TWINS if isinstance(error, twin.lower))
    found = ours(
        error.message, kind=kind, where=error.where or where, remedy=error.remedy or remedy
    )
    for note in getattr(error, "__notes__", ()):
        found.add_note(note)
    return found


def _misfit(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ArgumentError | None:
    """What is wrong with the arguments of a call that failed; None if they are as annotated.

    The call is looked at only after it failed, which costs nothing otherwise and refuses nothing
    that works.
    """
    name, signature = _name(function), inspect.signature(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        takes = f"it takes {_bare(signature)}"
        return ArgumentError(str(error), kind="bad-argument", where=name, remedy=takes)
    hints = get_type_hints(function)
    for key, value in bound.arguments.items():
        several = signature.parameters[key].kind in (inspect.Parameter.VAR_POSITIONAL,
                                                     inspect.Parameter.VAR_KEYWORD)  # fmt: skip
        if not several and not fits(value, hints.get(key, Any)):
            wanted = signature.parameters[key].annotation
            return ArgumentError(
                f"expected {wanted}, got {_shown(value)}", kind="bad-argument", where=key,
                remedy=f"see help(planner.{name})",
            )  # fmt: skip
    return None


def _bare(signature: inspect.Signature) -> str:
    """The arguments of a signature without their types."""
    given = [p for p in signature.parameters.values() if p.name != "self"]
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in given]))


def _shown(value: object) -> str:
    """A value in a message: itself if it is short, and its type."""
    text = repr(value)
    short = len(text) <= 60 and "\n" not in text
    return f"{text if short else 'a value'} of type {type(value).__name__}"
