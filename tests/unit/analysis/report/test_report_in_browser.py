"""The page of runs in a real browser: drawn, chosen from, on a phone, in the dark, on paper, and under attack.

Runs where Chromium is on PATH (`apt-get install chromium-headless-shell`).
"""

import base64
import time
from dataclasses import replace

import pytest

from fairseq_mtmoe.analysis.report.page import page_of
from fairseq_mtmoe.errors import visible
from tests.helpers.browser import NAMES, find_browser, running_browser
from tests.helpers.reported_runs import made_up_facts, read_facts

pytestmark = pytest.mark.skipif(find_browser() is None, reason=f"no browser on PATH: none of {', '.join(NAMES)}")

CHARTS = "[...document.querySelectorAll('.plot')]"
DRAWN = f"{CHARTS}.filter(x => x.querySelector('canvas, svg')).map(x => x.id)"
CHANGE = "(one => { one.value = '%s'; one.dispatchEvent(new Event('%s')); })(document.getElementById('%s'))"
TABLE = """(one => { one.open = true; one.dispatchEvent(new Event('toggle'));
  return [...one.querySelectorAll('tr')].map(row => [...row.children].map(cell => cell.textContent));
})(document.getElementById('%s-table'))"""
CELLS = "[...document.querySelectorAll('%s tr')].map(row => [...row.children].map(cell => cell.textContent))"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
TEXTS = ["body", "nav a", ".soft", "caption", "th", ".pill", "button", ".data summary", ".source dd", ".choice"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    made = {"one": made_up_facts(4, 5000), "three": made_up_facts(13, 5000, 3),
            "read": read_facts(folder / "read"), "hostile": read_facts(folder / "hostile", hostile=True),
            "watched": replace(made_up_facts(3, 2000), watched=0.2)}  # fmt: skip
    for name, facts in made.items():
        (folder / f"{name}.html").write_text(page_of(facts), encoding="utf-8")
    (folder / "empty.html").write_text("<!DOCTYPE html><title>nothing</title>", encoding="utf-8")
    return folder, made


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with running_browser(find_browser(), tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def opened(browser, pages):
    def open_page(name, width=1100, scheme="light"):
        emulate(browser, width, scheme)
        browser.open(pages[0] / "empty.html")  # which keeps nothing when it is left
        browser.run("sessionStorage.clear()")
        browser.open(pages[0] / f"{name}.html")
        settle(browser)
        return browser

    return open_page


def emulate(browser, width=1100, scheme="light", media=""):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.send("Emulation.setEmulatedMedia", media=media, features=features)
    browser.send("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)


def settle(browser):
    """Until frames have been drawn: what comes into view is told between them."""
    browser.send("Runtime.evaluate", awaitPromise=True, expression=(
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done))))"
    ))  # fmt: skip


def show(browser, name):
    browser.run(f"document.getElementById('{name}').scrollIntoView({{behavior: 'instant'}})")
    for _ in range(200):
        settle(browser)
        if browser.run(f"document.querySelector('#{name} canvas, #{name} svg, #{name} p') !== null"):
            return
    raise AssertionError(f"{name} is not drawn")


def show_all(browser):
    for name in browser.run(f"{CHARTS}.map(x => x.id)"):
        show(browser, name)


def problems(browser):
    entries = [one for one in browser.told("Log.entryAdded") if one["entry"]["level"] == "error"]
    return [*entries, *browser.told("Runtime.exceptionThrown"), *browser.told("Page.javascriptDialogOpening")]


def test_an_attack_changes_nothing(opened, pages):
    page = opened("hostile")
    page.run("document.querySelectorAll('details').forEach(x => x.open = true)")
    show_all(page)
    assert page.requests() == [(pages[0] / "hostile.html").as_uri()]
    assert problems(page) == [] and page.run("window.owned") is None
    assert page.run("document.querySelectorAll('script').length") == 3
    assert page.run("document.querySelectorAll('img, iframe, object, embed, link, base').length") == 0
    odd = "[...document.querySelectorAll('*')].some(x => [...x.attributes].some(a => /^on/.test(a.name)))"
    assert page.run(odd) is False
    (run, _) = pages[1]["hostile"].runs
    text = run.scores.samples[0]
    shown = {"h1 bdi": run.name, ".reference dd": text.references[0], ".hypothesis dd": text.hypothesis}
    for name, value in shown.items():
        assert page.run(f"document.querySelector('{name}').textContent") == visible(value)


def test_the_policy_would_stop_what_got_through(browser, pages, tmp_path):
    """Were something not escaped after all: no script runs, nothing is fetched."""
    text = (pages[0] / "one.html").read_text(encoding="utf-8")
    attack = "<script>window.owned = 1</script><img src='https://example.org/x' onerror='window.owned = 1'><main"
    (tmp_path / "open.html").write_text(text.replace("<main", attack, 1), encoding="utf-8")
    browser.open(tmp_path / "open.html")
    settle(browser)
    assert browser.run("window.owned") is None
    assert any("Content Security Policy" in str(one) for one in browser.told("Log.entryAdded"))
    assert not any(url.startswith("http") for url in browser.requests() if "example" not in url)


def test_charts_are_drawn_when_they_come_into_view_and_ask_for_nothing(opened, pages):
    page = opened("read")
    show(page, "curves-chart-plot")
    assert "experts-chart-plot" not in page.run(DRAWN)
    show_all(page)
    parts = "curves training sampling selection experts entropy gates sources speed exchange scores"
    assert page.run(DRAWN) == [f"{name}-chart-plot" for name in parts.split()]
    assert page.requests() == [(pages[0] / "read.html").as_uri()] and problems(page) == []


def test_a_table_has_the_numbers_of_a_chart_and_runs_can_be_left_out(opened, pages):
    page = opened("three")
    rows = page.run(TABLE % "curves-chart")
    row = next(row for row in pages[1]["three"].runs[0].rows if (row.group, row.metric) == ("all", "ppl"))
    place = rows[0].index("all: run-1")
    assert [float(cells[place]) for cells in rows[1:]] == pytest.approx(row.value.tolist(), rel=1e-3)
    assert [float(cells[0]) for cells in rows[1:]] == row.moments.update.tolist()
    page.run("document.getElementById('run-1').click()")
    assert len(page.run(TABLE % "curves-chart")[0]) - 1 == (len(rows[0]) - 1) * 2 / 3
    assert page.run("document.querySelectorAll('#scores thead th').length") == 4  # of, tier, 2 runs
    page.run(CHANGE % ("tokens", "change", "curves-x"))
    assert float(page.run(TABLE % "curves-chart")[-1][0].replace(",", "")) == row.moments.tokens[-1]


def test_names_are_found_and_chosen(opened, pages):
    page = opened("three")
    page.run("document.getElementById('curves-search').focus()")
    page.send("Input.insertText", text="-AB")
    found = "[...document.querySelectorAll('#curves .pill:not([hidden])')].map(x => x.textContent)"
    assert page.run(found) == ["en-ab"]
    drawn, boxes = (page.run(f"document.querySelectorAll('#curves .pill{kind}').length") for kind in (" :checked", ""))
    assert drawn < boxes
    assert page.run("document.querySelector('#curves > p').textContent").startswith(f"{drawn} of {boxes} lines are")
    page.run("[...document.querySelectorAll('#curves .chooser button')].find(x => /found/.test(x.textContent)).click()")
    rows = page.run(TABLE % "curves-chart")
    assert rows[0][1:] == ["en-ab: run-1", "en-ab: run-2", "en-ab: run-3"]
    row = next(row for row in pages[1]["three"].runs[2].rows if (row.task, row.metric) == ("en-ab", "ppl"))
    assert float(rows[-1][3]) == pytest.approx(row.value[-1], rel=1e-3)


def test_the_map_of_experts_shows_languages_layers_and_updates(opened, pages):
    page = opened("one")
    show(page, "experts-chart-plot")
    rows = [row for row in pages[1]["one"].runs[0].rows if row.group == "experts"]
    row = next(row for row in rows if (row.layer, row.task) == ("decoder.layers.1", "ab"))
    page.run(CHANGE % ("1", "input", "experts-layer"))
    page.run(CHANGE % ("0", "input", "experts-moment"))
    wanted = [f"{100 * share:.1f} %" for share in (row.value[0] / row.value[0].sum()).round(4)]
    assert page.run(TABLE % "experts-chart")[2] == ["ab", *wanted]
    for kind, number in (("layers", 2), ("updates", len(row.value)), ("tasks", 4)):
        page.run(CHANGE % (kind, "change", "experts-rows"))
        assert len(page.run(TABLE % "experts-chart")) == 1 + number


def test_the_whole_page_by_keyboard_alone(opened):
    page = opened("one")
    seen, last = [], None
    page.run("document.body.focus(); scrollTo(0, 0)")
    for _ in range(150):
        page.press("Tab", 9)
        last = page.run("(one => one.id || one.textContent.slice(0, 20) || one.tagName)(document.activeElement)")
        if seen and last == seen[0]:
            break
        seen.append(last)
    assert seen[0] == "Skip to the content" and len(seen) < 145  # the end is reached: nothing holds the focus
    assert {"theme", "curves-metric", "experts-layer", "As a table", "texts-search"} <= set(seen)


@pytest.mark.parametrize("name", ["read", "hostile"])
def test_no_page_is_wider_than_its_window(opened, name):
    page = opened(name, width=360)
    page.run("document.querySelectorAll('details').forEach(x => x.open = true)")
    show_all(page)
    assert page.run("window.innerWidth") == 360 >= page.run("document.documentElement.scrollWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read_in_the_light_and_in_the_dark(opened, scheme):
    page = opened("three", scheme=scheme)
    background = {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 25, 30)"}
    show(page, "curves-chart-plot")
    picture = "document.querySelector('#curves-chart-plot canvas').toDataURL()"
    assert page.run(BACKGROUND) == background[scheme]
    assert [ratio for ratio in page.contrasts(TEXTS) if ratio < 4.5] == []
    before, other = page.run(picture), {"light": "dark", "dark": "light"}[scheme]
    page.run(CHANGE % (other, "change", "theme"))
    for _ in range(30):
        settle(page)
    assert page.run(BACKGROUND) == background[other]
    assert page.run(picture) != before  # charts follow
    assert [ratio for ratio in page.contrasts(TEXTS) if ratio < 4.5] == []


def test_on_paper_the_choices_are_hidden(opened):
    page = opened("three", scheme="dark")
    show(page, "curves-chart-plot")
    emulate(page, scheme="dark", media="print")
    settle(page)
    assert page.run(BACKGROUND) == "rgb(255, 255, 255)"
    for hidden in (".bar", ".controls", ".chooser"):
        assert page.run(f"getComputedStyle(document.querySelector('{hidden}')).display") == "none"
    sheet = base64.b64decode(page.send("Page.printToPDF", printBackground=True)["data"])
    assert sheet.startswith(b"%PDF") and sheet.count(b"/Type /Page\n") + sheet.count(b"/Type /Page ") >= 3


def test_scores_are_sorted_and_say_what_stands_out(opened, pages):
    page = opened("read")
    page.run("[...document.querySelectorAll('#scores thead button')].find(x => x.textContent === 'run-1').click()")
    shown = page.run(CELLS % "#scores tbody")
    scores = [float(row[3].split()[0]) for row in shown]
    assert scores == sorted(scores) and len(scores) == 3 and all("±" in row[2] for row in shown)
    (_, _, found) = pages[1]["read"].comparisons[0]
    for name, *_, difference in shown:
        of = found.pairs[name]
        assert difference == f"{of.difference:+.2f}" + (" *" if of.p_randomisation < 0.05 else "")
    assert [row[0] for row in page.run(CELLS % "#scores tfoot")] == ["low", "high", "all"]


def test_translations_are_searched_and_differences_marked(opened):
    page = opened("three")
    page.run("document.getElementById('texts-search').focus()")
    page.send("Input.insertText", text="sentence 2 of en-ac")
    assert [page.run(f"document.querySelectorAll('.texts {one}').length") for one in ("li", ".hypothesis")] == [1, 3]
    marked = page.run("[...document.querySelectorAll('.texts .hypothesis .other')].map(x => x.textContent)")
    assert "«" in marked and "Satz" not in marked


def test_a_page_made_anew_shows_what_was_shown(opened, pages):
    page = opened("three")
    page.run(CHANGE % ("tokens", "change", "curves-x"))
    page.run(CHANGE % ("layers", "change", "experts-rows"))
    page.run("document.getElementById('run-2').click()")
    page.run("document.getElementById('commands').open = true")
    page.run(CHANGE % ("en-ab", "input", "texts-search"))
    page.run("scrollTo({top: 900, behavior: 'instant'})")
    settle(page)
    page.open(pages[0] / "three.html")
    settle(page)
    names = ("curves-x", "experts-rows", "texts-search")
    assert [page.run(f"document.getElementById('{name}').value") for name in names] == ["tokens", "layers", "en-ab"]
    assert page.run("document.getElementById('run-2').checked") is False
    assert page.run("document.getElementById('commands').open") is True
    assert page.run("Math.abs(scrollY - 900) < 40")


def test_a_watched_page_looks_for_a_newer_one_until_it_is_told_not_to(opened):
    page = opened("watched")
    page.events.clear()
    page.wait_for("Page.loadEventFired")  # it comes again of itself
    settle(page)
    page.run("document.getElementById('follow').click()")
    page.events.clear()
    time.sleep(1.8)  # more than the page waits
    settle(page)
    assert page.told("Page.loadEventFired") == []
