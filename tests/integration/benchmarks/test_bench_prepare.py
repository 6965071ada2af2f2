"""The benchmark of data preparation."""

import pytest
from click.testing import CliRunner

SCRIPT = "bench_prepare"


@pytest.mark.scheduled
@pytest.mark.parametrize(("options", "is_there"), [([], True), (["--alone"], False)])
def test_both_systems_have_the_same_ids(options, is_there, bench):
    result = CliRunner().invoke(bench.main, ["--pairs", "4000", *options], catch_exceptions=False)
    assert "peak MB, 4,000 pairs" in result.output and (bench.THEIRS in result.output) == is_there
