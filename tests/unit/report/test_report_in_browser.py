"""The page of runs in a real browser: every chart is drawn, and nothing is fetched or executed.

Runs where Chromium is on PATH (`apt-get install chromium-headless-shell`).
"""

import pytest

from fairseq_mtmoe.core.pages import page_of
from fairseq_mtmoe.report.page import read_shown, sections_of
from tests.helpers.browser import NAMES, find_browser, running_browser
from tests.helpers.reported_runs import write_runs

pytestmark = pytest.mark.skipif(find_browser() is None, reason=f"no browser on PATH: none of {', '.join(NAMES)}")

DRAWN = """new Promise(done => {
  const look = () => performance.getEntriesByName('complete').length ? done() : setTimeout(look, 50);
  look();
})"""
FIGURES = "[...document.querySelectorAll('figure')].map(figure => figure.querySelector('canvas, svg') !== null)"


def test_every_chart_is_drawn_and_nothing_is_fetched_or_executed(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(page_of("Runs", sections_of(read_shown(write_runs(tmp_path, hostile=True)), {})))
    with running_browser(find_browser(), tmp_path / "profile") as browser:
        browser.open(page)
        browser.send("Runtime.evaluate", expression=DRAWN, awaitPromise=True)
        figures = browser.run(FIGURES)
        assert len(figures) > 12 and all(figures)
        assert browser.run("window.owned") is None
        assert [url for url in browser.requests() if not url.startswith("data:")] == [page.as_uri()]
        messages = [told["entry"]["text"] for told in browser.told("Log.entryAdded")]
        assert messages == [] and browser.told("Runtime.exceptionThrown") == []
