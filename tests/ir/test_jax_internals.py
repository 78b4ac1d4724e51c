# pyright: basic
"""The versions of JAX: those that are known read alike, others are refused by name."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ir.errors import TraceError
from ir.inlined import bodies_of, inlined
from ir.jax_internals import check_version, equations, params_of, primitive_of, shown
from ir.jax_versions import KNOWN
from ir.table import OPS
from ir.trace import trace
from tests.helpers_graphs import ops
from tests.helpers_internals import Primitive

X = np.arange(12, dtype=np.float32).reshape(4, 3)
HELD = {"jaxpr": None, "length": 4, "reverse": False, "unroll": 1}


def scanned(x):
    carry, ys = lax.scan(lambda c, row: (c * row + x[0], (c, row.sum())), x[1], x, reverse=True)
    return carry, *ys


def scan_of():
    (eqn,) = (e for e in equations(jax.make_jaxpr(scanned)(X)) if e.primitive.name == "scan")
    return eqn


def equation(name, **params):
    return SimpleNamespace(primitive=Primitive(name), params=params, invars=[])


class Tree:
    """Stands for the trees of JAX 0.11 and later."""

    def __init__(self, *counts):
        self.counts = counts

    def unpack(self):
        return tuple(range(count) for count in self.counts)


def test_the_version_here_is_known() -> None:
    check_version()
    for major, minor in KNOWN:
        check_version(f"{major}.{minor}.7.dev3")


@pytest.mark.parametrize("found", ["0.9.2", "1.10.0", "0.99.1"])
def test_other_versions_are_refused(found: str) -> None:
    with pytest.raises(TraceError, match=rf"JAX {found} is installed, but .* pip install 'jax>="):
        check_version(found)


def test_tracing_asks_for_the_version(monkeypatch) -> None:
    versions = ((0, 1), (0, 2))
    monkeypatch.setattr("ir.jax_internals.KNOWN", versions)
    monkeypatch.setattr("ir.jax_versions.KNOWN", versions)
    with pytest.raises(TraceError, match=r"reads JAX 0\.1 and 0\.2.*'jax>=0\.1,<0\.3'"):
        trace(jnp.sin, X)


def test_a_version_without_what_is_read_says_so_at_once() -> None:
    lacking = "import sys; sys.modules['jax.extend.source_info_util'] = None; import ir.trace"
    done = subprocess.run([sys.executable, "-c", lacking], capture_output=True, text=True)
    assert done.returncode == 1
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith(f"ImportError: JAX {jax.__version__} is installed (")
    assert "but Meshwright reads JAX 0.10, " in line


def test_a_scan_says_alike_what_it_carries() -> None:
    old = params_of(equation("scan", num_consts=1, num_carry=2, **HELD))
    new = params_of(equation("scan", ft_in=Tree(1, 2, 3), ft_out=Tree(2, 4), **HELD))
    assert old == new
    here = params_of(scan_of())
    assert here.keys() == old.keys()
    assert (here["num_consts"], here["num_carry"]) == (1, 1)


@pytest.mark.parametrize(
    ("eqn", "lacks"),
    [
        (equation("scan", ft_both=1, **HELD), "num_consts, num_carry"),
        (equation("while", body_jaxpr=1, cond_jaxpr=1), "cond_nconsts, body_nconsts"),
        (equation("cond", cases=()), "branches"),
        (equation("remat2", jaxpr=1, policy=None), "prevent_cse"),
    ],
)
def test_control_flow_of_an_unknown_version_is_refused(eqn, lacks: str) -> None:
    with pytest.raises(TraceError, match=f"a {eqn.primitive.name} without {lacks} .it has "):
        params_of(eqn)


def test_a_scan_runs_with_the_parameters_that_all_versions_have() -> None:
    eqn = scan_of()
    found = primitive_of(eqn).bind(X, X[1], X, **params_of(eqn))
    for mine, theirs in zip(found, scanned(X), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_policies_and_defaults_are_told_alike() -> None:
    def policy(kept):
        return shown("remat2", {"jaxpr": 0, "policy": kept, "prevent_cse": True})["policy"]

    known = jax.checkpoint_policies
    assert policy(known.dots_saveable) == (("only_if_no_batch_dims", False),)
    assert policy(known.checkpoint_dots_with_no_batch_dims) == (("only_if_no_batch_dims", True),)
    assert policy(known.nothing_saveable) is known.nothing_saveable
    assert shown("top_k", {"k": 2, "is_stable": True}) == shown("top_k", {"k": 2})
    assert shown("top_k", {"k": 2, "is_stable": False}) != shown("top_k", {"k": 2})
    assert shown("reduce_max", {"axes": (0,), "out_sharding": None}) == {"axes": (0,)}


def test_functions_of_the_library_are_read_as_what_they_do() -> None:
    flags = X > 3

    def fn(flags, x):
        rows, columns = jnp.nonzero(flags, size=6)
        return jnp.searchsorted(x[0], x[rows, columns]), jnp.ldexp(x, 2)

    graph = trace(fn, flags, X).graph
    assert all(op in OPS for op in ops(graph))


def test_what_would_not_be_recomputed_is_refused() -> None:
    class RematTraced:
        pass

    eqn = equation("call_hi_primitive", _prim=RematTraced())
    for read in (inlined, bodies_of):
        with pytest.raises(TraceError, match=r"'RematTraced'.*jax_remat3"):
            read(eqn)
