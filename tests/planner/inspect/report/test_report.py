# pyright: basic
"""The report: well-formed, self-contained, accessible, and inert whatever a plan is called."""

from __future__ import annotations

import html
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import jax
import jax.numpy as jnp
import msgspec
import optax
import pytest

from planner import Plan, load, plan
from planner.common.errors import PlanError
from planner.files.plan_file import one_stage
from planner.inspect.report import report_html
from tests.planner.programs import BATCH, PARAMS, mean_loss, slow_machine, struct

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
VOID = {"meta", "link"}


class Page(HTMLParser):
    """Elements with their attributes, nesting checked."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def of(self, *tags: str) -> list[dict[str, str | None]]:
        return [attrs for tag, attrs in self.found if tag in tags]


def evil_plan() -> Plan:
    def fn(params, x):
        return jnp.tanh(x @ params[EVIL]).sum()

    fn.__name__ = EVIL
    return plan(fn, {EVIL: struct(16, 16)}, struct(8, 16), cluster=slow_machine(4))


def layers_plan() -> Plan:
    def loss(params, batch):
        def layer(x, w):
            return jax.nn.relu(x @ w["up"]) @ w["down"], None

        return jnp.mean(jax.lax.scan(layer, batch, params)[0] ** 2)

    params = {"up": struct(3, 16, 32), "down": struct(3, 32, 16)}
    return plan(jax.grad(loss), params, struct(8, 16), cluster=slow_machine(8), mesh=(2, 4))


@pytest.fixture(scope="module", params=["training", "layers", "evil"])
def page(request, tmp_path_factory) -> Page:
    makers = {
        "training": lambda: plan(
            mean_loss,
            PARAMS,
            BATCH,
            cluster=slow_machine(),
            optimizer=optax.adam(1e-3),
        ),
        "layers": layers_plan,
        "evil": evil_plan,
    }
    path = tmp_path_factory.mktemp("report") / "plan.html"
    makers[request.param]().report(path)
    return Page(path.read_text(encoding="utf-8"))


def test_nothing_is_fetched_or_run(page: Page) -> None:
    tags = {tag for tag, _ in page.found}
    assert not tags & {"script", "img", "iframe", "object", "embed", "form", "base", "use", "image"}
    for tag, attributes in page.found:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href", "xlink:href", "action"):
            target = attributes.get(name)
            assert target is None or target.startswith("#") or target == "data:,"
    policy = [a for a in page.of("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in (policy[0]["content"] or "")
    assert not re.search(r"@import|url\(", "".join(page.text))


def test_tables_and_pictures_can_be_read_aloud(page: Page) -> None:
    assert len(page.of("table")) == len(page.of("caption")) >= 3
    assert all(a.get("scope") in ("row", "col") for a in page.of("th"))
    drawn = page.of("svg")
    assert len(drawn) >= 4
    assert all(a.get("role") == "img" and a.get("aria-label") for a in drawn)
    levels = [int(tag[1]) for tag, _ in page.found if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_links_lead_to_sections(page: Page) -> None:
    ids = [a["id"] for a in page.of("section")]
    assert [a["href"] for a in page.of("a")] == [f"#{i}" for i in ids]
    assert len(set(ids)) == len(ids)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    found = evil_plan()
    found.save(tmp_path / "plan.json")
    load(tmp_path / "plan.json").report(tmp_path / "plan.html")
    text = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert EVIL not in text
    assert EVIL in "".join(Page(text).text)


def test_the_same_plan_gives_the_same_bytes(tmp_path: Path) -> None:
    found = layers_plan()
    found.report(tmp_path / "a.html")
    found.report(tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_loop_is_drawn_once_with_its_rounds(tmp_path: Path) -> None:
    found = layers_plan()
    found.report(tmp_path / "plan.html")
    said = "".join(Page((tmp_path / "plan.html").read_text(encoding="utf-8")).text)
    assert "This part runs 3 times in a step" in said
    assert "reads params/up" in said or "reads arg0/up" in said or "/up [" in said


def test_notebooks_get_the_page_in_a_sandbox() -> None:
    shown = evil_plan()._repr_html_()
    frame = Page(shown).of("iframe")[0]
    assert frame["sandbox"] is None  # nothing is allowed in it
    assert "<script>" not in (inner := frame["srcdoc"] or "")
    assert Page(inner).of("table")
    assert html.unescape(shown).count("<iframe") == 1


def test_an_unwritable_path_is_one_error(tmp_path: Path) -> None:
    found = evil_plan()
    with pytest.raises(PlanError, match="cannot be written"):
        found.report(tmp_path / "no" / "plan.html")
    with pytest.raises(PlanError, match="it is a folder"):
        found.report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_is_priced_otherwise_now_is_said_to_be() -> None:
    found = evil_plan()
    assert "prices the plan at" not in report_html(found.file, found.analysed_programs)
    program = msgspec.structs.replace(found.program, peak_bytes=found.peak_bytes * 2)
    old = Plan(one_stage(program, len(found.graph.nodes)), found.bound)
    assert "prices the plan at" in report_html(old.file, old.analysed_programs)
