# The library ships no types; see https://github.com/scientific-python/lazy-loader (BSD-3-Clause).
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType

def attach(
    package_name: str,
    submodules: Iterable[str] | None = None,
    submod_attrs: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]: ...
def attach_stub(
    package_name: str, filename: str
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]: ...
def load(fullname: str, *, require: str | None = None) -> ModuleType: ...
