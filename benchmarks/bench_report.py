"""The page of `mtmoe report`: how large it is, how long it takes to write, and to open in a real browser.

    python benchmarks/bench_report.py --write

Made-up runs with 50 languages and 100,000 updates, one run and several. Opening is from the start of the navigation to
when the first chart is drawn, in a window of 1280 by 1600 pixels, in a browser that has loaded the page before, so that
files are in memory; beside it, until every chart is drawn.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import click
from measure import Report, report_name, report_options
from timing import Floor

sys.path.insert(0, str(Path(__file__).parents[1]))
from fairseq_mtmoe.analysis.report.page import sections_of
from fairseq_mtmoe.io.pages import write_page
from tests.helpers.browser import Browser, find_browser, running_browser
from tests.helpers.reported_runs import made_up_runs

SECONDS, MEGABYTES = Floor(2.0, at_most=True), Floor(5.0, at_most=True)
TURNS = 7

OPENED = """new Promise(done => {
  const look = () => performance.getEntriesByName('complete').length ? done() : setTimeout(look, 10);
  look();
})"""
MOMENTS = "['drawn', 'complete'].map(name => performance.getEntriesByName(name)[0].startTime)"


def opening(browser: Browser, page: Path) -> tuple[float, float]:
    """Seconds until the first chart is drawn, and until all are."""
    browser.open(page)
    browser.send("Runtime.evaluate", expression=OPENED, awaitPromise=True)
    first, every = browser.run(MOMENTS)
    return first / 1000, every / 1000


@click.command()
@click.option("--languages", default=50, show_default=True)
@click.option("--updates", default=100_000, show_default=True)
@report_options("4 languages, 2,000 updates, one turn.")
def main(languages: int, updates: int, small: bool, write: bool, check: bool) -> None:
    """Write pages of one and of five runs, and open them."""
    small = small or check
    if small:
        languages, updates = 4, 2000
    path = find_browser()
    if path is None:
        click.echo("No browser on PATH, so nothing was measured: apt-get install chromium-headless-shell.", err=True)
        return
    report, rows, times = Report(report_name("report", small), "Opening a page of runs"), [], {}
    temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # a browser may still write its profile
    with temporary as place, running_browser(path, Path(place) / "profile") as browser:
        version = browser.run("navigator.userAgent").split("Chrome/")[-1].split(" ")[0]
        browser.send("Emulation.setDeviceMetricsOverride", width=1280, height=1600, deviceScaleFactor=1, mobile=False)
        for runs in (1, 5):
            page = Path(place) / f"{runs}.html"
            shown, begin = made_up_runs(languages, updates, runs), perf_counter()
            write_page(page, "Runs", sections_of(shown, {}))
            written, size = perf_counter() - begin, page.stat().st_size / 1e6
            opening(browser, page)
            turns = [opening(browser, page) for _ in range(1 if small else TURNS)]
            opened, every = (statistics.median(column) for column in zip(*turns, strict=True))
            rows.append([f"{runs} run{'s' * (runs > 1)}", size, written, opened, every])
            times[str(runs)] = turns
            report.figure(f"seconds to open, {rows[-1][0]}", opened, SECONDS)
            report.figure(f"MB, {rows[-1][0]}", size, MEGABYTES)
    report.table(
        f"{languages} languages, {updates:,} updates, Chromium {version}",
        ["", "MB", "seconds to write", "to open", "to draw all charts"], rows,
        f"Medians of {1 if small else TURNS} turns.",
    )  # fmt: skip
    report.raw("seconds", times)
    report.finish(write, check)


if __name__ == "__main__":
    main()
