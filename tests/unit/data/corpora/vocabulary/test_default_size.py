"""How many pieces a vocabulary gets whose size nobody says."""

import pytest

from fairseq_mtmoe.data.corpora.vocabulary.training import default_size

LINE = "x" * 100


@pytest.mark.parametrize(
    ("sentences", "characters", "pieces"),
    [
        (100, 80, 1000),  # the least
        (2 * 84_000, 100, 4400),
        (2 * 160_000, 80, 8160),  # IWSLT's size, for which 8,000 to 10,000 are usual
        (2 * 84_000, 3000, 10_200),  # with Chinese
        (2 * 4_500_000, 80, 32_000),  # WMT's
    ],
)
def test_it_grows_with_the_text_between_bounds(sentences, characters, pieces):
    assert default_size(sentences, [LINE] * 10, characters) == pieces


def test_text_of_short_sentences_has_fewer():
    assert default_size(320_000, [LINE[:25]], 80) == 160 + 2000
    assert default_size(0, [], 0) == 1000
