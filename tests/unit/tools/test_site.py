"""The site of `make docs` in a real browser: its search, on a phone, and in the dark.

Runs where Chromium is on PATH (`apt-get install chromium-headless-shell`).
"""

import subprocess
import sys
import time

import pytest

from tests.helpers.browser import NAMES, find_browser, running_browser
from tests.helpers.commands import ENVIRONMENT, REPOSITORY

pytestmark = pytest.mark.skipif(find_browser() is None, reason=f"no browser on PATH: none of {', '.join(NAMES)}")

FOUND = "!!document.querySelector('.search a[href*=\"reference/options.html\"]')"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


def test_the_site_is_searched_and_read_from_the_disk(tmp_path):
    pytest.importorskip("furo")
    site = tmp_path / "html"
    made = [sys.executable, "-m", "sphinx", "-q", "-d", tmp_path / "doctrees", REPOSITORY / "docs", site]
    subprocess.run(made, check=True, env=ENVIRONMENT, cwd=REPOSITORY, capture_output=True)
    with running_browser(find_browser(), tmp_path) as browser:
        browser.open(f"{(site / 'search.html').as_uri()}?q=--expert-gates")
        ends = time.monotonic() + 60  # results come one by one
        while not browser.run(FOUND) and time.monotonic() < ends:
            time.sleep(0.1)
        assert browser.run(FOUND)
        browser.open(site / "index.html")
        assert all(address.startswith(("file:", "data:")) for address in browser.requests()), browser.requests()
        light = browser.run(BACKGROUND)
        browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        assert browser.run(BACKGROUND) != light
        phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
        browser.send("Emulation.setDeviceMetricsOverride", **phone)
        for page in ("index", "start/ten_minutes", "guides/choose_model"):
            browser.open(site / f"{page}.html")
            assert browser.run("document.documentElement.scrollWidth <= innerWidth"), page
