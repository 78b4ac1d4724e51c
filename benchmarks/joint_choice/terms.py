"""Terms of rules as programs on tensors of known sizes."""

from __future__ import annotations

from substitutions import RuleError
from substitutions.ops import CONSTANTS
from substitutions.term import Term
from substitutions.text import parse_term, show_term

from .egraph import Forms
from .shapes import KINDS


def of_term(forms: Forms, text: str) -> int:
    """The class of a term such as `matmul(relu(matmul(x, w)), v)`, whose variables are inputs.

    Raises:
        RuleError: if it cannot be read, names an op that is not supported, or does not type.
    """
    return _of(forms, parse_term(text))


def _of(forms: Forms, term: Term) -> int:
    if not term.kind:
        return forms.input(term.name)
    if term.kind not in KINDS or term.kind in CONSTANTS:
        raise RuleError(f"{term.kind} is not supported", where=show_term(term))
    args = [_of(forms, arg) for arg in term.args]
    params = tuple((key, int(value)) for key, value in term.params if key != "activation")
    if term.kind in ("along", "expand"):
        params = (*params, ("shape", forms.types[args[1]].shape))
        args = args[:1]
    found = forms.op(term.kind, params, args)
    if found is None:
        shapes = ", ".join(str(forms.types[c]) for c in args)
        raise RuleError(f"{term.kind} does not take {shapes}", where=show_term(term))
    return found
