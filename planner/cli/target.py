"""Finds what to plan: `path/to/file.py:name` or `package.module:name`."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import planner

from ..common.errors import PlanError
from ..common.options import Options
from .failure import described

_FORM = "write path/to/file.py:name or package.module:name"
_RETURN = "(fn, args) or (fn, args, kwargs_for_plan)"
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_OURS = ("cluster", "progress")  # settings that only the command line gives
_LITTLE = "jax_disable_most_optimizations"


@dataclass(frozen=True)
class Target:
    """A function, its arguments, and settings for `plan`."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    settings: dict[str, Any]


def load_target(text: str, arguments: Mapping[str, Any] | None = None) -> Target:
    """Imports a target and calls it; XLA optimises little of what the call compiles.

    Initial values are computed once, and to optimise that takes longer than to run it.

    Args:
        text: where it is.
        arguments: that it is called with, by name.

    Raises:
        PlanError: if it does not exist, cannot be imported or called, or returns something else.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not _DOTTED.fullmatch(name):
        raise _bad(text, "names no function", _FORM)
    is_file = place.endswith(".py") or "/" in place or "\\" in place
    module = _from_file(text, Path(place)) if is_file else _from_module(text, place)
    return _checked(text, _called(text, _found(text, module, name), arguments or {}))


def _bad(where: str, message: str, remedy: str = "") -> PlanError:
    return PlanError(message, kind="bad-target", where=where, remedy=remedy)


# --- importing ----------------------------------------------------------------------------------


def _from_file(text: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise _bad(text, f"there is no file {path}", _near_file(path))
    if path.suffix != ".py":
        raise _bad(text, f"{path} is not a Python file", _FORM)
    folder, parts = path.resolve().parent, [path.stem]
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    _reach(Path.cwd())
    _reach(folder)
    if len(parts) == 1:
        return _alone(text, path)
    module = _imported(text, ".".join(parts))
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise _bad(
            text, f"`import {'.'.join(parts)}` finds {module.__file__}",
            f"rename the package {parts[0]}: another one of that name is loaded already",
        )  # fmt: skip
    return module


def _near_file(path: Path) -> str:
    beside = [p.name for p in sorted(path.parent.glob("*.py"))] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, beside, n=1)
    return f"did you mean {path.parent / near[0]}?" if near else "check the path"


def _reach(folder: Path) -> None:
    """Puts a folder first on the search path, as `python file.py` and `python -m` do."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _alone(text: str, path: Path) -> ModuleType:
    """A file outside any package, under its own name where that is free."""
    name = path.stem if path.stem not in sys.modules else f"meshwright_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _import_failed(text, error) from error
    return module


def _from_module(text: str, name: str) -> ModuleType:
    if not _DOTTED.fullmatch(name):
        raise _bad(text, f"'{name}' is neither a .py file nor the name of a module", _FORM)
    _reach(Path.cwd())
    return _imported(text, name)


def _imported(text: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise _bad(
                text, f"there is no module '{error.name}'",
                "modules are looked up from the current folder and among those installed",
            ) from error  # fmt: skip
        raise _import_failed(text, error) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(text, error) from error


def _import_failed(text: str, error: BaseException) -> PlanError:
    remedy = "the target's file must import without errors; run it with python to see more"
    if isinstance(error, ImportError) and "relative import" in str(error):
        remedy = "name a module of a package as package.module:name"
    return _bad(text, f"importing it raised {described(error)}", remedy)


# --- the function ---------------------------------------------------------------------------------


def _found(text: str, module: ModuleType, name: str) -> Any:
    """The attribute, dotted or not."""
    held: Any = module
    for part in name.split("."):
        if not hasattr(held, part):
            owner = f"'{module.__name__}'" if held is module else f"a {type(held).__name__}"
            raise _bad(text, f"there is no '{part}' in {owner}", _near_name(held, part))
        held = getattr(held, part)
    return held


def _near_name(holder: Any, name: str) -> str:
    public = [n for n in dir(holder) if not n.startswith("_")]
    near = difflib.get_close_matches(name, public, n=1)
    if near:
        return f"did you mean '{near[0]}'?"
    home = getattr(holder, "__name__", "")
    able = [n for n in public if _is_target(getattr(holder, n), home)]
    return f"it has {', '.join(able[:8])}" if able else "it holds no function without arguments"


def _is_target(value: Any, home: str) -> bool:
    if isinstance(value, type) or not callable(value) or _needed(value):
        return False
    return getattr(value, "__module__", "") == home or isinstance(value, functools.partial)


def _needed(value: Any) -> list[str]:
    """Arguments without which a callable cannot be called."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []  # some builtins have no signature; the call itself will tell
    packed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in packed]


def _unknown(value: Any, names: Iterable[str]) -> list[str]:
    """Names that a callable takes no argument of."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = {p.name for p in parameters if p.kind in named}
    return [name for name in names if name not in known]


def _called(text: str, value: Any, arguments: Mapping[str, Any]) -> Any:
    if not callable(value):
        raise _bad(
            text, f"is a {type(value).__name__}, expected a function without arguments",
            f"name a function that returns {_RETURN}",
        )  # fmt: skip
    if unknown := _unknown(value, arguments):
        raise _bad(
            text, f"takes no argument '{unknown[0]}', which is swept",
            f"write def {text.rpartition(':')[2]}({unknown[0]}=...), or leave it out of --sweep",
        )  # fmt: skip
    if needed := [name for name in _needed(value) if name not in arguments]:
        raise _bad(
            text, f"needs the arguments {', '.join(needed)}, expected a function without arguments",
            "give them beforehand, for instance with functools.partial",
        )  # fmt: skip
    try:
        with _optimised_little():
            return value(**arguments)
    except (Exception, SystemExit) as error:
        raise _bad(text, f"raised {described(error)}", "call it in Python to see more") from error


@contextmanager
def _optimised_little() -> Generator[None]:
    """XLA compiles quickly meanwhile, if JAX is loaded and knows the setting."""
    config = getattr(sys.modules.get("jax"), "config", None)
    if config is None or config.values.get(_LITTLE, True):
        yield
        return
    config.update(_LITTLE, True)
    try:
        yield
    finally:
        config.update(_LITTLE, False)


def _checked(text: str, value: Any) -> Target:
    wanted = f"return {_RETURN}"
    if not isinstance(value, tuple) or len(cast("tuple[Any, ...]", value)) not in (2, 3):
        found = cast("object", value)
        size = f" of {len(cast('Sequence[Any]', value))}" if isinstance(value, tuple) else ""
        raise _bad(text, f"returned a {type(found).__name__}{size}, expected {_RETURN}", wanted)
    fn, args, *rest = cast("tuple[Any, ...]", value)
    if not callable(fn):
        raise _bad(text, f"returned a {type(fn).__name__} first, expected a function", wanted)
    if not isinstance(args, (tuple, list)):
        raise _bad(
            text, f"returned a {type(args).__name__} second, expected a tuple of arguments",
            "for one argument x write (fn, (x,))",
        )  # fmt: skip
    return Target(fn, tuple(cast("list[Any]", args)), _settings(text, rest[0] if rest else {}))


def _settings(text: str, given: Any) -> dict[str, Any]:
    """Settings that `plan` takes.

    Raises:
        PlanError: for one that it does not, or that the command line gives.
    """
    if not isinstance(given, Mapping):
        found = type(given).__name__
        raise _bad(text, f"returned a {found} third, expected a dict of settings for plan")
    settings = {str(k): v for k, v in cast("Mapping[Any, Any]", given).items()}
    named = inspect.signature(planner.plan).parameters.values()
    known = {p.name for p in named if p.kind is p.KEYWORD_ONLY} - {*_OURS}
    known |= {f.name for f in fields(Options)}
    for name in settings:
        if name in _OURS:
            raise _bad(text, f"sets '{name}', which the command line gives", "leave it out")
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(sorted(known))}"
            raise _bad(text, f"sets '{name}', which plan does not know", hint)
    return settings
