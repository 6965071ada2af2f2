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


def test_some_pairs_are_duplicates_and_some_of_the_test_set(bench):
    assert list(bench.repeated(["one", "two"], 5)) == ["one", "two", "one b", "two b", "one c"]
    lines = list(map(str, range(500)))
    found = list(bench.with_duplicates(lines, ["a", "b", "c", "d"]))
    assert found[:3] == ["0", "a", "1"] and found.index("b") == 52 and "c" not in found
    assert Counter(found).most_common(9)[-1][1] == 1 and Counter(found)["100"] == 2 and len(found) == 510


@pytest.mark.rare
@pytest.mark.parametrize(("option", "shown", "absent"), [
    ("--pairs", ("test sentences are the same", "Comparing pairs", "Making the vocabulary"), "work folder GiB"),
    ("--memory-pairs", ("work folder GiB", "peak MB, 4,000 pairs"), "fairseq-preprocess"),
])  # fmt: skip
def test_both_systems_have_the_same_ids_and_memory_is_of_ours_alone(option, shown, absent, bench, tmp_path):
    options = [option, "4000", "--folder", str(tmp_path)]
    result = CliRunner().invoke(bench.main, options, catch_exceptions=False)
    assert all(words in result.output for words in shown) and absent not in result.output
    assert not list(tmp_path.iterdir())
