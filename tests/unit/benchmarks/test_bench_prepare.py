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


def test_text_is_repeated_without_duplicates(script):
    assert list(script.repeated(["one", "two"], 5)) == ["one", "two", "one b", "two b", "one c"]


def test_some_pairs_are_duplicates_and_some_of_the_test_set(script):
    lines = list(map(str, range(500)))
    found = list(script.with_duplicates(lines, ["a", "b", "c", "d"]))
    assert found[:3] == ["0", "a", "1"] and found.index("b") == 52 and "c" not in found
    assert Counter(found).most_common(9)[-1][1] == 1 and Counter(found)["100"] == 2 and len(found) == 510


@pytest.mark.rare
@pytest.mark.slow
def test_both_systems_have_the_same_ids(script, tmp_path):
    result = CliRunner().invoke(script.main, ["--pairs", "4000", "--folder", str(tmp_path)], catch_exceptions=False)
    assert "test sentences are the same" in result.output
    assert "Comparing pairs" in result.output and "Making the vocabulary" in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.rare
@pytest.mark.slow
def test_memory_is_measured_of_ours_alone(script, tmp_path):
    options = ["--memory-pairs", "4000", "--folder", str(tmp_path)]
    result = CliRunner().invoke(script.main, options, catch_exceptions=False)
    assert "peak MB, 4,000 pairs" in result.output and "fairseq-preprocess" not in result.output
    assert not list(tmp_path.iterdir())
