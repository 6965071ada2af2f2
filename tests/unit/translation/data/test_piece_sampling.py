"""Sentences are drawn in other pieces, and stay the same text."""

import math
import pickle
import random
from collections import Counter

import pytest
import torch
from fairseq.data import Dictionary

from fairseq_mtmoe.translation.data.new_pieces import BPE, model_type
from fairseq_mtmoe.translation.data.piece_sampling import SampledSide, _Bpe, _Unigram
from fairseq_mtmoe.translation.data.vocabulary import Side
from tests.helpers.piece_models import pieces_of, trained_pieces
from tests.helpers.refused import refused
from tests.helpers.translated_text import texts

CODE, LONGEST = "__aa__", 1000


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def side(request):
    draw = random.Random(1)
    model = trained_pieces([" ".join(draw.choices(texts(40, 0), k=3)) for _ in range(300)], request.param, 150)
    return Side((*pieces_of(model), CODE), model)


def encoded(side, line, *before):
    dictionary = side.dictionary()
    pieces = [*before, *side.processor.encode(line, out_type=str)]
    return torch.tensor([*map(dictionary.index, pieces), dictionary.eos()])


def sampled(side, longest=LONGEST, amount=0.3):
    return SampledSide(side, side.dictionary(), amount, longest, "DATA")


def test_the_text_stays_and_the_seed_alone_decides_its_pieces(side):
    dictionary, drawing, line = side.dictionary(), sampled(side), " ".join(texts(4, 0))
    tokens = encoded(side, line, CODE)
    found = [drawing.drawn(tokens, seed) for seed in range(20)]
    assert len({tuple(each.tolist()) for each in found}) > 15 and torch.equal(tokens, encoded(side, line, CODE))
    for each in found:
        assert each[0] == tokens[0] and each[-1] == tokens[-1] and each.dtype == tokens.dtype
        assert side.processor.decode([dictionary[token] for token in each[1:-1].tolist()]) == line
    copy = pickle.loads(pickle.dumps(drawing))
    assert all(torch.equal(copy.drawn(tokens, seed), found[seed]) for seed in (7, 3, 7))


def test_at_its_limit_it_cuts_as_sentencepiece_does(side):
    limit = sampled(side, amount=1e-12 if model_type(side.model) == BPE else 1e4)
    for line in texts(60, 9):
        assert torch.equal(limit.drawn(encoded(side, line, CODE), 1), encoded(side, line, CODE))


def test_what_is_no_text_stays_in_its_place(side):
    line, other = texts(2, 0)
    tokens = encoded(side, f"{line} ☃☃ {other}", CODE)
    unknown = side.dictionary().unk()
    found = [sampled(side).drawn(tokens, seed).tolist() for seed in range(5)]
    assert all(each.count(unknown) == tokens.tolist().count(unknown) == 1 for each in found)
    assert len({each.index(unknown) for each in found}) > 1 and {each[0] for each in found} == {tokens[0].item()}
    assert sampled(side).drawn(encoded(side, ""), 1).tolist() == [side.dictionary().eos()]
    assert all(torch.equal(sampled(side, len(tokens) - 1).drawn(tokens, seed), tokens) for seed in range(5))
    with refused("--sample-pieces", "DATA"):
        SampledSide(side, Dictionary(), 0.1, LONGEST, "DATA")


def test_segmentations_of_a_unigram_model_have_their_probabilities_to_the_power_of_the_amount():
    scores, amount, word = {"a": -1.0, "b": -2.0, "ab": -2.5, "ba": -4.0, "aba": -5.0}, 0.6, "aba"
    ids = {name: number for number, name in enumerate(scores)}
    ways = [("a", "b", "a"), ("ab", "a"), ("a", "ba"), ("aba",)]
    weights = [math.exp(amount * sum(scores[piece] for piece in way)) for way in ways]
    unigram, rng = _Unigram(ids, scores, amount), random.Random(1)
    counts = Counter(tuple(unigram(word, rng)) for _ in range(20_000))
    for way, weight in zip(ways, weights, strict=True):
        assert counts[tuple(ids[piece] for piece in way)] / 20_000 == pytest.approx(weight / sum(weights), abs=0.015)


def test_bpe_leaves_out_each_join_with_the_probability():
    ids = {name: number for number, name in enumerate(("a", "b", "ab"))}
    bpe, rng = _Bpe(ids, {"a": 0.0, "b": 0.0, "ab": -1.0}, 0.3), random.Random(1)
    assert sum(len(bpe("ab", rng)) == 2 for _ in range(20_000)) / 20_000 == pytest.approx(0.3, abs=0.015)
    assert bpe("axb", rng) == []
