"""The benchmark of data preparation: text like text, and both systems' ids are the same."""

import sys
from collections import Counter
from itertools import islice

import pytest
from click.testing import CliRunner


@pytest.fixture
def script():
    import bench_prepare

    yield bench_prepare
    sys.modules.pop("bench_prepare")


def test_made_up_text_is_always_the_same_and_has_frequent_words(script):
    lines = list(script.sentences("en", 1, 400))
    assert lines == list(script.sentences("en", 1, 400)) and len(set(lines)) > 390
    assert (
        lines[:5] == list(islice(script.sentences("en", 1, 400), 5)) != list(islice(script.sentences("de", 1, 400), 5))
    )
    counts = Counter(word for line in lines for word in line.rstrip(".").lower().split()).most_common()
    assert min(map(len, map(str.split, lines))) >= 4 and counts[0][1] > 10 * counts[100][1]


def test_real_text_is_repeated_without_duplicates(script, tmp_path):
    (tmp_path / "text").write_text("one\ntwo\n")
    assert list(script.repeated(tmp_path / "text", 5)) == ["one", "two", "one b", "two b", "one c"]


@pytest.mark.slow
def test_both_systems_have_the_same_ids(script, tmp_path):
    result = CliRunner().invoke(script.main, ["--pairs", "3000", "--folder", str(tmp_path)], catch_exceptions=False)
    assert "The ids of the test data are the same, byte for byte" in result.output
    assert not list(tmp_path.iterdir())
