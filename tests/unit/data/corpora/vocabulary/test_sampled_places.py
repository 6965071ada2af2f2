"""Which sentences a vocabulary is trained on, by their places."""

from collections import Counter

import numpy as np
import pytest

from fairseq_mtmoe.data.corpora.cleaning.keys import mixed
from fairseq_mtmoe.data.corpora.vocabulary import sample_lines, training
from fairseq_mtmoe.data.corpora.vocabulary.training import temperature_quotas

SIZES = {"de": 5000, "gu": 30, "en": 5030, "tlh": 0}


def test_languages_have_their_quotas_and_small_ones_are_repeated_whole():
    places = sample_lines(SIZES, temperature=5, seed=1, total=3000)
    quotas = temperature_quotas({"de": 5000, "en": 5030, "gu": 30}, 5, 3000)
    assert {lang: len(of) for lang, of in places.items()} == quotas
    for of in places.values():
        assert np.all(np.diff(of) >= 0)
    copies, rest = divmod(quotas["gu"], 30)
    times = Counter(places["gu"].tolist())
    assert len(times) == 30 and Counter(times.values()) == {copies: 30 - rest, copies + 1: rest}
    assert len(set(places["de"].tolist())) == quotas["de"] < 5000 and places["de"].max() < 5000


def test_all_is_taken_where_there_is_room():
    assert sample_lines({"de": 7, "fr": 7}, 1, 1)["fr"].tolist() == list(range(7))
    assert sample_lines({}, 1, 1) == {} == sample_lines({"de": 0}, 1, 1)


def test_the_draw_is_by_hash_whatever_is_looked_at_together(monkeypatch):
    one = sample_lines(SIZES, 5, 1, 3000)
    monkeypatch.setattr(training, "_PLACES_AT_ONCE", 77)
    again, other = sample_lines(SIZES, 5, 1, 3000), sample_lines(SIZES, 5, 2, 3000)
    assert all(np.array_equal(one[lang], again[lang]) for lang in one)
    assert not np.array_equal(one["de"], other["de"])
    draws = {place: int(mixed(np.array([9], np.uint64), np.array([place], np.uint64))[0]) for place in range(5000)}
    assert set(training._drawn(5000, 40, 9).tolist()) == set(sorted(draws, key=draws.__getitem__)[:40])


@pytest.mark.parametrize("share", [0, 1])
def test_no_part_of_a_language_is_taken_more_often_than_another(share):
    drawn = training._drawn(100_000, 20_000, 3 + share)
    assert abs(np.histogram(drawn, bins=10, range=(0, 100_000))[0] - 2000).max() < 200
