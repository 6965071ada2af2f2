"""The benchmark of the page of runs: it opens real pages and writes what it found."""

import json

import pytest
from click.testing import CliRunner

from tests.helpers.browser import NAMES, find_browser

SCRIPT = "bench_report"
pytestmark = pytest.mark.skipif(find_browser() is None, reason=f"no browser on PATH: none of {', '.join(NAMES)}")


@pytest.mark.rare
def test_pages_of_one_and_several_runs_are_opened(bench, tmp_path):
    result = CliRunner().invoke(bench.main, ["--small", "--write"])
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "report_small.json").read_text(encoding="utf-8"))["tables"][0]["rows"]
    assert [row[0] for row in rows] == ["1 run", "5 runs"] and rows[0][1] < rows[1][1]  # five runs are larger
    assert all(value > 0 for row in rows for value in row[1:])
