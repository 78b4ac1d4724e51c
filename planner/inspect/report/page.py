"""A plan as one HTML file that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...files.plan_file import PlanFile
from ..analysed_plan import AnalysedPlan
from ..at_a_glance import at_a_glance
from ..timeline import predicted
from .arguments import groups
from .experts_section import experts
from .markup import Markup, el, join
from .runners import runners
from .sections import (
    baselines,
    causes,
    layer,
    lead,
    machine,
    runners_up,
    tensors,
    tiles,
    timeline,
    warnings,
)
from .style import CSS

# Nothing may be fetched or run, whatever a plan file holds.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def program_html(file: PlanFile, analysed: AnalysedPlan) -> str:
    """The report of a plan of one program.

    Raises:
        PlanError: if the plan does not fit this version's search space.
    """
    step = predicted(analysed)
    found, glance = groups(analysed), at_a_glance(analysed)
    parts = {
        "Warnings": warnings(analysed, step),
        "Mesh and stages": machine(analysed, file.stages),
        **experts(glance, [analysed]),
        "Tensors": tensors(found),
        "Repeated layer": layer(analysed, step),
        "Timeline": timeline(analysed, step),
        "Time and bytes by cause": causes(analysed, step),
        "Baselines": baselines(analysed),
        "Runners-up": runners_up(runners(analysed, found)),
    }
    title = f"Plan for {analysed.program.name} on {analysed.cluster.name}"
    return document(title, tiles(analysed, glance), parts, _origin(file, analysed), lead(glance))


def document(
    title: str,
    facts: Sequence[tuple[str, str, str]],
    parts: Mapping[str, Markup],
    about: str,
    first: Markup | None = None,
) -> str:
    """A page: title, first words, the figures that matter most, sections, where it is from."""
    links = (el("li", el("a", name, href=f"#{_anchor(name)}")) for name in parts)
    blocks = (
        el("section", el("h2", name), body, id=_anchor(name), aria_label=name)
        for name, body in parts.items()
    )
    boxes = (
        el("div", el("dt", name), el("dd", value, el("small", more)), class_="tile")
        for name, value, more in facts
    )
    head = el(
        "header", el("h1", title), first, el("dl", *boxes, class_="tiles"),
        el("nav", el("ul", *links), aria_label="Sections"),
    )  # fmt: skip
    return _page(title, join([head, el("main", *blocks), el("footer", about)]))


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _origin(file: PlanFile, analysed: AnalysedPlan) -> str:
    return (
        f"Written by meshwright {file.planner} with JAX {file.jax}. Times are predictions of the "
        "cost model, in seconds of one call; bytes are of one device. Graph "
        f"{analysed.program.graph_digest[:16]}."
    )


def _page(title: str, body: Markup) -> str:
    head = join(
        [
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
            Markup('<link rel="icon" href="data:,">'),
            el("title", title),
            Markup(f"<style>{CSS}</style>"),
        ]
    )
    page = el("html", Markup(f"<head>{head}</head>"), el("body", body), lang="en")
    return f"<!doctype html>\n{page}\n"
