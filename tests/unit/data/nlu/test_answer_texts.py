"""SQuAD's comparison of answers, on cases worked out by hand from its rules."""

import pytest

from fairseq_mtmoe.data.nlu.answers import best, exact_match, f1, normalized


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Quick, brown\nfox!", "quick brown fox"),
        ("an a-team the theatre", "ateam theatre"),
        ("“Ann”", "“ann”"),  # of ASCII's punctuation alone
        ("The", ""),
    ],
)
def test_what_is_compared(text, expected):
    assert normalized(text) == expected


@pytest.mark.parametrize(
    ("answer", "right", "share"),
    [
        ("the October 1973", "October, 1973", 1),
        ("October", "October 1973", 2 * 1 * 0.5 / 1.5),
        ("in in October", "in October", 2 * (2 / 3) * 1 / (2 / 3 + 1)),  # each word as often as it is there
        ("the", "a", 0),  # nothing is left of either
    ],
)
def test_f1(answer, right, share):
    assert f1(answer, right) == pytest.approx(share)


def test_exact_matches():
    assert [exact_match("The May.", one) for one in ("may", "May 1973")] == [1, 0]
    assert exact_match("the", "a") == 1  # SQuAD's own rule


def test_the_most_alike_counts():
    assert best("f1", "October 1973", ["May", "October", "in October 1973"]) == pytest.approx(0.8)
