"""Where a solver gives up, a rule is not accepted for it."""

from __future__ import annotations

import pytest

from substitutions import judge
from substitutions.verify import prove
from tests.substitutions.published import FLEXFLOW, TASO, rules, verdicts


@pytest.mark.parametrize("name", [FLEXFLOW, TASO])
def test_an_unanswered_question_of_sizes_accepts_nothing_more(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """z3 out of time answers that nothing follows; conditions may grow, refusals stay."""
    usual = verdicts(name)

    def never(*_given: object) -> bool:
        return False

    monkeypatch.setattr(prove, "implied", never)
    for rule, before in list(zip(rules(name), usual, strict=True))[::9]:
        after = judge(rule)
        assert before.accepted or not after.accepted, rule
        assert after.verdict != "proved" or before.verdict == "proved", rule
