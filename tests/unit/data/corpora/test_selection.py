import pytest

from fairseq_mtmoe.data.corpora.selection import select_languages
from fairseq_mtmoe.errors import UserError

SIZES = {"aa": 1000, "bb": 800, "cc": 400, "dd": 200, "ee": 100, "ff": 30}


def test_all_that_keep_half_for_training():
    assert select_languages(SIZES, held_out=50) == ["aa", "bb", "cc", "dd", "ee"]


def test_wanted_ones_largest_first():
    assert select_languages(SIZES, held_out=20, langs=["ff", "bb"]) == ["bb", "ff"]


def test_thinned_along_the_sizes():
    assert select_languages(SIZES, held_out=10, max_langs=3) == ["aa", "cc", "ff"]
    assert select_languages(SIZES, held_out=10, max_langs=1) == ["aa"]
    assert select_languages(SIZES, held_out=10, max_langs=9) == list(SIZES)


def test_too_small():
    with pytest.raises(UserError, match="must leave ff messages to train on, but it has 30 and they hold out 30"):
        select_languages(SIZES, held_out=30, langs=["aa", "ff"])
    with pytest.raises(UserError, match="the largest language has 1000 and they hold out 501"):
        select_languages(SIZES, held_out=501)
    with pytest.raises(UserError, match="the largest language has 0"):
        select_languages({}, held_out=1)
