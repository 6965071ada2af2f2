"""The page of a report in a real browser: on a phone, in the dark, and under attack.

Runs where Chromium is on PATH (`apt-get install chromium-headless-shell`).
"""

import pytest

from fairseq_mtmoe.data.corpora.page import page_of
from tests.helpers.browser import NAMES, find_browser, running_browser
from tests.helpers.corpus_reports import HOSTILE, hostile, report

pytestmark = pytest.mark.skipif(find_browser() is None, reason=f"no browser on PATH: none of {', '.join(NAMES)}")

TEXTS = ["body", 'a[href="#raw"]', ".soft", ".findings h2", ".findings li", "th", "dt"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, content in {"plain": report(8, 20), "hostile": hostile()}.items():
        (folder / f"{name}.html").write_text(page_of(content), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with running_browser(find_browser(), tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def plain(browser, pages):
    browser.send("Emulation.setEmulatedMedia", media="", features=[])
    browser.send("Emulation.setDeviceMetricsOverride", width=1100, height=800, deviceScaleFactor=1, mobile=False)
    browser.open(pages / "plain.html")
    return browser


def test_an_attack_changes_nothing(browser, pages):
    browser.open(pages / "hostile.html")
    assert browser.requests() == [(pages / "hostile.html").as_uri()]
    assert not browser.told("Page.javascriptDialogOpening") and not browser.told("Log.entryAdded")
    assert browser.run("document.title").endswith(HOSTILE[1])
    assert browser.run("document.querySelectorAll('script, img, svg, iframe, object, link').length") == 0
    assert (
        browser.run("[...document.querySelectorAll('*')].some(x => [...x.attributes].some(a => /^on/.test(a.name)))")
        is False
    )
    sides = browser.run("[...document.querySelector('.samples').querySelectorAll('p')].map(x => x.textContent)")
    assert HOSTILE[0] in sides
    assert browser.run("getComputedStyle(document.querySelector('main')).display") == "block"


def test_the_policy_would_stop_what_got_through(browser, pages, tmp_path):
    """Were something not escaped after all: no script runs, nothing is fetched."""
    text = (pages / "plain.html").read_text(encoding="utf-8")
    text = text.replace("<main", f"{HOSTILE[0]}<img src='https://example.org/x' onerror='document.title=2'><main", 1)
    (tmp_path / "open.html").write_text(text, encoding="utf-8")
    browser.open(tmp_path / "open.html")
    assert browser.run("document.title").startswith("What became")
    assert any("Content Security Policy" in str(told) for told in browser.told("Log.entryAdded"))


@pytest.mark.parametrize("width", [320, 1100])
def test_no_page_is_wider_than_its_window(plain, width):
    plain.send("Emulation.setDeviceMetricsOverride", width=width, height=740, deviceScaleFactor=2, mobile=width < 500)
    plain.run("document.querySelectorAll('details').forEach(x => x.open = true)")
    assert plain.run("window.innerWidth") == width
    assert plain.run("document.documentElement.scrollWidth") <= width
    assert plain.run("document.querySelector('.samples li p').getBoundingClientRect().width") > 100


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read_in_the_light_and_in_the_dark(plain, scheme):
    plain.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    background = plain.run("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 25, 30)"}[scheme]
    assert all(ratio >= 4.5 for ratio in plain.contrasts(TEXTS))
