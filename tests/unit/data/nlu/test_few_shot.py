from dataclasses import fields

import numpy as np
import pytest

from fairseq_mtmoe.data.nlu.loader import few_of, shares_of
from fairseq_mtmoe.data.nlu.reading import Example, Span
from fairseq_mtmoe.errors import UserError
from tests.unit.data.nlu.test_dataset import TOKENIZER, WORDS

LETTERS = WORDS[4:]


def word_pairs(draw, count):
    texts = [" ".join(draw.choice(LETTERS, size=draw.integers(1, 6))) for _ in range(count)]
    return [Example(((text, "c"),), n % 3, str(n), (Span(0, 0, 1), Span(1, 0, 1))) for n, text in enumerate(texts)]


def rankings(draw, count):
    def candidates(number):
        return tuple((text, str(draw.choice(LETTERS))) for text in draw.choice(LETTERS, size=number))

    return [
        Example(candidates(2 + n % 3), n % 2, str(n), right=(n % 2,), names=tuple("abcd"[: 2 + n % 3]))
        for n in range(count)
    ]


@pytest.mark.parametrize("make", [word_pairs, rankings])
def test_what_is_kept_is_as_if_it_was_tokenized_alone(make):
    examples = make(np.random.default_rng(5), 200)
    few = few_of(TOKENIZER.tokenize(examples), 0.1, seed=1, is_regression=False)
    alone = TOKENIZER.tokenize([examples[int(key)] for key in few.keys_E])
    assert len(few) == 20 and np.bincount(few.labels_E.astype(int)).min() >= 6
    for field in fields(few):
        found, expected = (np.asarray(getattr(split, field.name)) for split in (few, alone))
        assert np.array_equal(found, expected) and found.dtype == expected.dtype, field.name


def test_a_regression_keeps_low_and_high_values():
    draw = np.random.default_rng(5)
    values = draw.permutation(np.round(5 * draw.random(500) ** 2, 2))
    examples = [Example((("a",),), float(value), str(n)) for n, value in enumerate(values)]
    few = few_of(TOKENIZER.tokenize(examples), 0.04, seed=1, is_regression=True)
    low, high = np.quantile(values, [0.2, 0.8])
    assert len(few) == 20
    assert 3 <= np.sum(few.labels_E < low) <= 5 and 3 <= np.sum(few.labels_E > high) <= 5


@pytest.mark.parametrize(
    ("text", "shares"),
    [(None, (1, 1)), ("0.1", (0.1, 0.1)), ("mnli=0.01,rte=0.5", (0.01, 0.5)), ("rte=1e-3,0.2", (0.2, 0.001))],
)
def test_shares_of_tasks(text, shares):
    assert shares_of(text, ["mnli", "rte"]) == dict(zip(("mnli", "rte"), shares, strict=True))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0", "shares above 0 and at most 1"),
        ("nan", "shares above 0 and at most 1"),
        ("", None),
        ("0.1,0.2", "shares above 0 and at most 1"),
        ("rte=0.1,rte=0.1", "shares above 0 and at most 1"),
        ("cola=0.1", "of tasks among mnli, rte, but is 'cola=0.1' instead"),
    ],
)
def test_a_wrong_share_is_one_sentence(text, sentence):
    if sentence is None:
        assert shares_of(text, ["rte"]) == {"rte": 1}
        return
    with pytest.raises(UserError, match=f"`--train-share` must be {sentence}"):
        shares_of(text, ["mnli", "rte"])
