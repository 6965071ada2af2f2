"""The benchmark of data preparation: text like text, and both systems' ids are the same."""

from collections import Counter
from itertools import islice

import pytest
from click.testing import CliRunner

SCRIPT = "bench_prepare"


def test_made_up_text_is_always_the_same_and_has_frequent_words(bench):
    lines = list(bench.sentences("en", 1, 400))
    assert lines == list(bench.sentences("en", 1, 400)) and len(set(lines)) > 390
    assert lines[:5] != list(islice(bench.sentences("de", 1, 400), 5))
    counts = Counter(word for line in lines for word in line.rstrip(".").lower().split()).most_common()
    assert min(map(len, map(str.split, lines))) >= 4 and counts[0][1] > 10 * counts[100][1]
    assert list(bench.repeated(["one", "two"], 5)) == ["one", "two", "one b", "two b", "one c"]


@pytest.mark.rare
@pytest.mark.parametrize(("options", "is_there"), [([], True), (["--alone"], False)])
def test_both_systems_have_the_same_ids(options, is_there, bench, tmp_path):
    options = ["--pairs", "4000", "--folder", str(tmp_path), *options]
    result = CliRunner().invoke(bench.main, options, catch_exceptions=False)
    assert "peak MB, 4,000 pairs" in result.output and (bench.THEIRS in result.output) == is_there
    assert not list(tmp_path.iterdir())
