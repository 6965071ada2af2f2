"""The page of runs in a real browser: drawn, by keyboard, on a phone, in the dark, on paper, and under attack.

Runs where Chromium is on PATH (`apt-get install chromium-headless-shell`).
"""

import base64
import re
import time

import pytest

from fairseq_mtmoe.analysis.page import page_of, room
from fairseq_mtmoe.io.pages import visible
from tests.helpers.browser import NAMES, find_browser, running_browser
from tests.helpers.run_facts import made_up_facts
from tests.helpers.run_pages import hostile_facts

pytestmark = pytest.mark.skipif(find_browser() is None, reason=f"no browser on PATH: none of {', '.join(NAMES)}")

CHARTS = "[...document.querySelectorAll('.plot')]"
DRAWN = f"{CHARTS}.filter(x => echarts.getInstanceByDom(x)).map(x => x.id)"
SERIES = "echarts.getInstanceByDom(document.getElementById('%s-plot')).getOption().series"
CHANGE = """(([id, value, kind]) => {
  document.getElementById(id).value = value;
  document.getElementById(id).dispatchEvent(new Event(kind));
})(['%s', '%s', '%s'])"""
TEXTS = [
    "body",
    "nav a",
    ".soft",
    ".badge",
    ".high .badge",
    ".warnings li",
    "caption",
    "th",
    "legend",
    ".pill",
    "button",
    ".choice input:checked + span",
    ".data summary",
    ".source dd",
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    made = {"one": made_up_facts(4, 5000), "three": made_up_facts(12, 5000, 3), "hostile": hostile_facts(),
            "large": made_up_facts(50, 100_000), "watched": made_up_facts(3, 2000) | {"watched": 0.2}}  # fmt: skip
    for name, facts in made.items():
        (folder / f"{name}.html").write_text(page_of(facts), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "NUMBERS", 60)
        (folder / "thinned.html").write_text(page_of(made["one"]), encoding="utf-8")
    one_epoch = made_up_facts(3, 1000, 2)
    for run in one_epoch["runs"]:
        sampling = run["sampling"]
        sampling |= {name: sampling[name][:1] for name in ("epochs", "updates", "temperature")}
        sampling["probabilities"] = {pair: values[:1] for pair, values in sampling["probabilities"].items()}
    one_epoch["comparisons"][0]["rows"][0] |= {"difference": 0.0004, "p": 0.01}
    one_epoch["runs"][0]["scores"]["remarks"] = ["every source is the same"]
    for row in one_epoch["runs"][0]["scores"]["rows"]:
        row["majority"] = 17.25
    (folder / "one_epoch.html").write_text(page_of(one_epoch), encoding="utf-8")
    (folder / "empty.html").write_text("<!DOCTYPE html><title>nothing</title>", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with running_browser(find_browser(), tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def opened(browser, pages):
    def open_page(name, width=1100, scheme="light"):
        emulate(browser, width, scheme)
        browser.open(pages / "empty.html")  # which keeps nothing when it is left
        browser.run("sessionStorage.clear()")
        browser.open(pages / f"{name}.html")
        settle(browser)
        return browser

    return open_page


def emulate(browser, width=1100, scheme="light", media=""):
    browser.send(
        "Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}]
    )
    browser.send("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)


def settle(browser):
    """Until frames have been drawn: what comes into view is told between them."""
    browser.send("Runtime.evaluate", awaitPromise=True, expression=(
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done))))"
    ))  # fmt: skip


def draw_all(browser):
    """Brings every chart into view once."""
    for name in browser.run(f"{CHARTS}.map(x => x.id)"):
        browser.run(f"document.getElementById('{name}').scrollIntoView({{behavior: 'instant'}})")
        settle(browser)


def told(browser):
    return browser.run("document.getElementById('told').textContent")


def figures(sentence):
    return [float(one) for one in re.findall(r"[0-9][0-9.]*", sentence)]


def problems(browser):
    return [
        *browser.told("Log.entryAdded"),
        *browser.told("Runtime.exceptionThrown"),
        *browser.told("Page.javascriptDialogOpening"),
    ]


def test_an_attack_changes_nothing(opened, pages):
    page = opened("hostile")
    page.run("document.querySelectorAll('details').forEach(x => x.open = true)")
    draw_all(page)
    for name in page.run(DRAWN):  # a tooltip in each chart
        page.run(f"document.getElementById('{name}').focus()")
        page.press("ArrowRight", 39)
        page.press("ArrowDown", 40)
    settle(page)
    assert page.requests() == [(pages / "hostile.html").as_uri()]
    assert problems(page) == []
    assert page.run("window.owned") is None
    assert page.run("document.querySelectorAll('script').length") == 3
    assert page.run("document.querySelectorAll('img, iframe, object, embed, link, base').length") == 0
    odd = "[...document.querySelectorAll('*')].some(x => [...x.attributes].some(a => /^on/.test(a.name)))"
    assert page.run(odd) is False
    facts = hostile_facts()
    assert page.run("document.querySelector('h1 bdi').textContent") == visible(facts["runs"][0]["name"])
    text = next(iter(facts["runs"][0]["samples"].values()))[0]
    assert page.run("document.querySelector('.reference dd').textContent") == visible(text["references"][0])
    assert page.run("document.querySelector('.hypothesis dd').textContent") == visible(text["hypothesis"])
    assert len(page.run(DRAWN)) == page.run(f"{CHARTS}.length")


def test_the_policy_would_stop_what_got_through(browser, pages, tmp_path):
    """Were something not escaped after all: no script runs, nothing is fetched."""
    text = (pages / "one.html").read_text(encoding="utf-8")
    attack = "<script>window.owned = 1</script><img src='https://example.org/x' onerror='window.owned = 1'><main"
    (tmp_path / "open.html").write_text(text.replace("<main", attack, 1), encoding="utf-8")
    browser.open(tmp_path / "open.html")
    settle(browser)
    assert browser.run("window.owned") is None
    assert any("Content Security Policy" in str(one) for one in browser.told("Log.entryAdded"))
    assert not any(url.startswith("http") for url in browser.requests() if "example" not in url)


def test_charts_are_drawn_when_they_come_into_view_and_ask_for_nothing(opened, pages):
    page = opened("three")
    before = page.run(DRAWN)
    assert "experts-chart-plot" not in before
    draw_all(page)
    assert len(page.run(DRAWN)) == page.run(f"{CHARTS}.length") > len(before)
    assert page.requests() == [(pages / "three.html").as_uri()]
    assert problems(page) == []


def test_a_large_page_draws_little_at_first(opened):
    """50 languages, 100,000 updates: the time is measured by `benchmarks/bench_report.py`; here is the work."""
    page = opened("large")
    assert len(page.run(DRAWN)) <= 2
    draw_all(page)
    points = page.run(f"{DRAWN}.map(id => echarts.getInstanceByDom(document.getElementById(id)).getOption().series"
                      ".reduce((sum, one) => sum + one.data.length, 0))")  # fmt: skip
    assert sum(points) < 25_000 and len(points) >= 6
    assert page.run("document.querySelectorAll('*').length") < 4000


def test_curves_say_when_there_was_no_room_for_all_of_them(opened):
    """What is left out is said, and the lowest perplexity is still there."""
    said = "document.getElementById('curves').textContent.includes('There was no room for every validation')"
    lines = {}
    for name in ("one", "thinned"):
        page = opened(name)
        page.run("document.getElementById('curves-chart-plot').scrollIntoView()")
        settle(page)
        assert page.run(said) == (name == "thinned")
        lines[name] = page.run(f"{SERIES % 'curves-chart'}.map(x => x.data.map(y => y[1]))")
    assert [min(line) for line in lines["one"]] == [min(line) for line in lines["thinned"]]
    assert all(len(few) < len(all_of_it) for few, all_of_it in zip(lines["thinned"], lines["one"], strict=True))


def test_runs_have_a_colour_each_and_can_be_left_out(opened):
    page = opened("three")
    draw_all(page)
    colours = page.run(f"[...new Set({SERIES % 'curves-chart'}.map(x => x.lineStyle.color))]")
    assert len(colours) == 3
    of_runs = page.run(
        "[...document.querySelectorAll('.progress .run')].map(x => getComputedStyle(x, '::before').backgroundColor)"
    )
    assert of_runs == colours
    lines = page.run(f"{SERIES % 'curves-chart'}.length")
    page.run("document.getElementById('run-1').click()")
    page.run("document.getElementById('curves-chart-plot').scrollIntoView()")
    settle(page)
    assert page.run(f"{SERIES % 'curves-chart'}.length") == lines * 2 / 3
    assert (
        page.run("document.querySelectorAll('#scores table')[0].querySelectorAll('thead th').length") == 5
    )  # of, tier, 2 runs, 1 difference


def test_rows_are_found_and_chosen(opened):
    page = opened("three")
    page.run("document.getElementById('curves-search').focus()")
    page.send("Input.insertText", text="-AB")
    assert page.run("[...document.querySelectorAll('#curves .pill:not([hidden])')].map(x => x.textContent)") == [
        "en-ab"
    ]
    page.run(
        "[...document.querySelectorAll('#curves .chooser button')].find(x => x.textContent === 'what is found').click()"
    )
    page.run("document.getElementById('curves-chart-plot').scrollIntoView()")
    settle(page)
    values = made_up_facts(12, 5000, 3)["runs"][0]["curves"]
    row = next(one for one in values["rows"] if one["key"] == "pair:en-ab" and one["metric"] == "ppl")
    shown = page.run(f"{SERIES % 'curves-chart'}[0].data.map(x => 10 ** x[1])")  # the axis is logarithmic
    assert shown == pytest.approx(row["values"], rel=1e-4)


@pytest.mark.parametrize(("axis", "last"), [("tokens", 5000 * 3000), ("minutes", 5000 / 120)])
def test_curves_go_over_tokens_and_minutes_too(opened, axis, last):
    page = opened("one")
    page.run(f"document.querySelector('#curves input[value={axis}]').click()")
    page.run("document.getElementById('curves-chart-plot').scrollIntoView()")
    settle(page)
    assert page.run(f"{SERIES % 'curves-chart'}[0].data.at(-1)[0]") == pytest.approx(last, rel=1e-4)


def test_the_map_of_experts_by_keyboard(opened):
    page = opened("one")
    facts = made_up_facts(4, 5000)["runs"][0]["experts"]
    page.run("document.getElementById('experts-chart-plot').scrollIntoView()")
    settle(page)
    page.run("document.getElementById('experts-layer').focus()")
    page.press("ArrowRight", 39)
    page.press("Tab", 9)  # from the sliders to the map
    assert page.run("document.activeElement.id") == "experts-chart-plot"
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    for key, code in (("ArrowRight", 39), ("ArrowRight", 39), ("ArrowDown", 40)):
        page.press(key, code)
    assert told(page).startswith("language ab, expert 2: ")
    share = facts["shares"][-1][1][1][2]
    assert figures(told(page)) == pytest.approx([2, 100 * share, 16 * share], abs=0.051)
    page.press("PageDown", 34)
    page.press("ArrowLeft", 37)
    share = facts["shares"][-2][1][1][1]
    assert figures(told(page)) == pytest.approx([1, 100 * share, 16 * share], abs=0.051)
    page.press("Escape", 27)
    page.press("Tab", 9)
    assert page.run("document.activeElement.textContent") == "As a table"  # out again
    page.press("Enter", 13, "\r")
    settle(page)
    assert page.run("document.querySelectorAll('#experts-chart-table tbody tr').length") == 4


def test_every_row_of_the_map_can_be_chosen(opened):
    page = opened("one")
    page.run("document.getElementById('experts-chart-plot').scrollIntoView()")
    for rows, number in (
        ("layers", 4),
        ("updates", len(made_up_facts(4, 5000)["runs"][0]["experts"]["updates"])),
        ("tasks", 4),
    ):
        page.run(f"document.querySelector('#experts input[value={rows}]').click()")
        settle(page)
        assert (
            page.run(
                "echarts.getInstanceByDom(document.getElementById('experts-chart-plot')).getOption().yAxis[0].data.length"
            )
            == number
        )


def test_the_whole_page_by_keyboard_alone(opened):
    page = opened("one")
    seen, last = [], None
    page.run("document.body.focus(); scrollTo(0, 0)")
    for _ in range(120):
        page.press("Tab", 9)
        last = page.run("(one => one.id || one.textContent.slice(0, 20) || one.tagName)(document.activeElement)")
        if seen and last == seen[0]:
            break
        seen.append(last)
    assert seen[0] == "To the figures"
    for name in (
        "theme",
        "curves-chart-plot",
        "training-chart-plot",
        "experts-chart-plot",
        "scores-chart-plot",
        "texts-search",
    ):
        assert name in seen or name == "scores-chart-plot"  # of one run there are no differences
    assert len(seen) < 115  # the end is reached: nothing holds the focus


def test_curves_by_keyboard_say_their_values(opened):
    page = opened("one")
    page.run("document.getElementById('curves-chart-plot').focus()")
    settle(page)
    page.press("End", 35)
    row = made_up_facts(4, 5000)["runs"][0]["curves"]["rows"][0]
    assert told(page).startswith("all, update 5000: ")
    assert float(told(page).split(": ")[1]) == pytest.approx(row["values"][-1], rel=1e-3)
    assert page.run("document.querySelector('.tip b').textContent") == "update 5000"
    page.press("+", 187, "+")
    assert (
        page.run(
            "echarts.getInstanceByDom(document.getElementById('curves-chart-plot')).getOption().dataZoom[0].startValue"
        )
        > 1000
    )


@pytest.mark.parametrize("name", ["three", "hostile"])
@pytest.mark.parametrize("width", [360, 1100])
def test_no_page_is_wider_than_its_window(opened, name, width):
    page = opened(name, width)
    page.run("document.querySelectorAll('details').forEach(x => x.open = true)")
    draw_all(page)
    assert page.run("window.innerWidth") == width
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run(f"{CHARTS}.every(x => x.clientWidth > 250)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read_in_the_light_and_in_the_dark(opened, scheme):
    page = opened("three", scheme=scheme)
    background = {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 25, 30)"}
    ink = "echarts.getInstanceByDom(document.getElementById('curves-chart-plot')).getOption().title[0].textStyle.color"
    page.run("document.getElementById('curves-chart-plot').scrollIntoView()")
    settle(page)
    assert page.run("getComputedStyle(document.body).backgroundColor") == background[scheme]
    assert [ratio for ratio in page.contrasts(TEXTS) if ratio < 4.5] == []
    before, other = page.run(ink), {"light": "dark", "dark": "light"}[scheme]
    page.run(CHANGE % ("theme", other, "change"))
    settle(page)
    assert page.run("getComputedStyle(document.body).backgroundColor") == background[other]
    assert page.run(ink) != before  # charts follow
    assert [ratio for ratio in page.contrasts(TEXTS) if ratio < 4.5] == []


def test_on_paper_everything_is_there_in_black_on_white(opened):
    page = opened("three", scheme="dark")
    page.send("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    settle(page)
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    shown = f"{CHARTS}.filter(x => x.checkVisibility())"
    assert page.run(f"{shown}.length") == page.run(f"{shown}.filter(x => x.querySelector('svg')).length") >= 6
    assert (
        page.run("echarts.getInstanceByDom(document.querySelector('.plot')).getOption().title[0].textStyle.color")
        == "rgb(27, 31, 36)"
    )
    for hidden in (".bar", ".controls", ".chooser"):
        assert page.run(f"getComputedStyle(document.querySelector('{hidden}')).display") == "none"
    assert (
        page.run("document.querySelector('.settings dd').getBoundingClientRect().height") > 0
    )  # folded up on the screen
    sheet = base64.b64decode(page.send("Page.printToPDF", printBackground=True)["data"])
    assert sheet.startswith(b"%PDF") and sheet.count(b"/Type /Page\n") + sheet.count(b"/Type /Page ") >= 3
    emulate(page)
    settle(page)
    page.run("document.querySelector('.plot').scrollIntoView()")
    settle(page)
    assert page.run("document.querySelector('.plot canvas') !== null")  # and back on the screen


def test_scores_are_sorted_and_say_what_stands_out(opened):
    page = opened("three")
    head = "[...document.querySelectorAll('#scores thead th button')].find(x => x.textContent === 'run-1')"
    values = "[...document.querySelectorAll('#scores tbody')][0].querySelectorAll('tr td:nth-child(3)')"
    page.run(f"{head}.click()")
    shown = page.run(f"[...{values}].map(x => parseFloat(x.textContent))")
    assert shown == sorted(shown) and len(shown) == 12
    page.run(f"{head}.click()")
    assert page.run(f"[...{values}].map(x => parseFloat(x.textContent))") == shown[::-1]
    stars = page.run("[...document.querySelectorAll('#scores tbody')][0].textContent.split('*').length - 1")
    p = [
        one["p"] for one in made_up_facts(12, 5000, 3)["comparisons"] if one["metric"] == "BLEU" for one in one["rows"]
    ]
    assert stars == sum(one < 0.05 for one in p[:12]) * 2


def test_scores_stand_beside_the_majority_class_and_remarks_below_them(opened):
    page = opened("one_epoch")
    text = page.run("document.getElementById('scores').textContent")
    assert "majority class" in text and "17.25" in text
    assert "run-1: every source is the same" in text and "[object" not in text


def test_a_difference_that_counts_is_not_shown_as_none_and_has_the_digits_of_the_scores(opened):
    page = opened("one_epoch")
    shown = page.run("[...document.querySelectorAll('#scores tbody')][0].textContent")
    assert "+0.0004 *" in shown and "0.00" not in shown.replace("0.0004", "")
    numbers = page.run(
        "[...document.querySelectorAll('#scores tbody')].flatMap(x => [...x.querySelectorAll('td')])"
        ".flatMap(x => x.textContent.match(/[0-9]+[.][0-9]+/g) ?? [])"
    )
    assert len(numbers) > 10 and {len(one.split(".")[1]) for one in numbers if one != "0.0004"} == {2}


def test_one_epoch_of_sampling_is_a_table(opened):
    page = opened("one_epoch")
    assert page.run("document.querySelector('#sampling .plot')") is None
    cells = page.run("[...document.querySelectorAll('#sampling tr')].map(x => x.textContent)")
    (run, _) = made_up_facts(3, 1000, 2)["runs"]
    share = run["sampling"]["probabilities"]["en-aa"][0]
    assert len(cells) == 5 and f"{100 * share:.1f} %" in next(cell for cell in cells if cell.startswith("en-aa"))
    assert cells[-1].startswith("temperature1")


def test_four_panels_are_two_and_two(opened):
    page = opened("one")
    draw_all(page)
    grids = "Object.values(echarts.getInstanceByDom(document.getElementById('speed-chart-plot')).getOption().grid)"
    panels = page.run(f"{grids}.map(x => [x.left, x.top])")
    rows = [sum(top == other for _, other in panels) for top in sorted({top for _, top in panels})]
    assert rows == [2, 2]


def test_translations_are_searched_and_differences_marked(opened):
    page = opened("three")
    page.run("document.getElementById('texts-search').focus()")
    page.send("Input.insertText", text="sentence 2 of en-ac")
    assert page.run("document.querySelectorAll('.texts li').length") == 1
    assert page.run("[...document.querySelectorAll('.texts .hypothesis')].length") == 3
    marked = page.run(
        "[...document.querySelector('.texts .hypothesis dd').querySelectorAll('.other')].map(x => x.textContent)"
    )
    assert "«" in marked and "Satz" not in marked


def test_a_page_made_anew_shows_what_was_shown(opened, pages):
    page = opened("three")
    page.run("document.querySelector('#curves input[value=tokens]').click()")
    page.run("document.querySelector('#experts input[value=layers]').click()")
    page.run("document.getElementById('run-2').click()")
    page.run("document.getElementById('courses').open = true")
    page.run(CHANGE % ("texts-search", "en-ab", "input"))
    page.run("scrollTo({top: 900, behavior: 'instant'})")
    settle(page)
    page.open(pages / "three.html")
    settle(page)
    assert page.run("document.querySelector('#curves input:checked[value=tokens]') !== null")
    assert page.run("document.querySelector('#experts input:checked[value=layers]') !== null")
    assert page.run("document.getElementById('run-2').checked") is False
    assert page.run(
        "document.getElementById('courses').open && document.querySelectorAll('#courses tbody tr').length > 10"
    )
    assert page.run("document.getElementById('texts-search').value") == "en-ab"
    assert page.run("Math.abs(scrollY - 900) < 40")


def test_a_watched_page_looks_for_a_newer_one_until_it_is_told_not_to(opened, pages):
    page = opened("watched")
    page.events.clear()

    page.wait_for("Page.loadEventFired")  # it comes again of itself
    settle(page)
    page.run("document.querySelector('#switches input').click()")
    page.events.clear()
    time.sleep(1.8)  # more than the page waits
    settle(page)
    assert page.told("Page.loadEventFired") == []


def test_short_names_are_not_broken(opened):
    page = opened("three")
    heights = page.run("[...document.querySelectorAll('.choice span')].map(x => x.getClientRects()[0].height)")
    assert len(heights) > 10 and max(heights) < 40  # pixels of one line
