# pyright: basic
"""Models of other libraries are the targets that the benchmark of start-up names."""

from __future__ import annotations

import jax
import pytest

from benchmarks.start import THIRD_PARTY
from benchmarks.third_party import LIBRARIES


def test_the_names_of_the_table_are_targets() -> None:
    assert {library: tuple(targets) for library, targets in LIBRARIES.items()} == THIRD_PARTY


def test_a_flow_keeps_its_fields() -> None:
    pytest.importorskip("jax_cfd")
    step, args, settings = LIBRARIES["jax_cfd"]["cfd_flow"]()
    assert settings == {"donate_argnums": (0,)}
    found, given = (jax.tree.leaves(x) for x in (jax.eval_shape(step, *args), args))
    assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in given]


@pytest.mark.parametrize("library", [name for name in THIRD_PARTY if name != "jax_cfd"])
def test_a_step_updates_what_it_is_given(library: str) -> None:
    pytest.importorskip(library)
    step, args, settings = next(iter(LIBRARIES[library].values()))()
    params, opt_state, loss, _ = jax.eval_shape(step, *args)
    assert settings == {"donate_argnums": (0, 1)}
    assert loss.shape == ()
    for given, found in ((args[0], params), (args[1], opt_state)):
        assert jax.tree.map(lambda x: (x.shape, x.dtype), given) == jax.tree.map(
            lambda x: (x.shape, x.dtype), found
        )
