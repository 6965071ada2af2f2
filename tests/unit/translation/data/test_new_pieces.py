"""A SentencePiece model gets pieces without cutting old text otherwise."""

import random
from collections import Counter
from itertools import pairwise

import pytest
import sentencepiece

from fairseq_mtmoe.translation.data.new_pieces import LEAST_JOINS, changed, figures, grow, model_type
from tests.helpers.piece_models import pieces_of, trained_pieces
from tests.helpers.pretrained_translators import sentences

KINDS = {"unigram": 1, "bpe": 2}
OLD = ("en", "sw", "fr")


def processor_of(model):
    return sentencepiece.SentencePieceProcessor(model_proto=model)


@pytest.fixture(scope="module", params=list(KINDS))
def grown(request):
    model = trained_pieces([line for lang in OLD for line in sentences(lang, 300)], request.param, 80)
    assert model_type(model) == KINDS[request.param]
    text = sentences("luo", 300)
    made = grow(model, processor_of(model), pieces_of(model), text, 40)
    return model, made, text


def test_new_pieces_follow_the_old_ones_with_lower_scores_and_are_used(grown):
    model, made, text = grown
    before, after = processor_of(model), processor_of(made.model)
    size = before.get_piece_size()
    pieces = [after.id_to_piece(number) for number in range(after.get_piece_size())]
    assert pieces[:size] == [before.id_to_piece(number) for number in range(size)]
    assert set(pieces[size:]) == made.parts.keys() and "ŋ" in made.parts and 10 < len(made.parts) <= 45
    scores = [after.get_score(number) for number in range(3, after.get_piece_size())]
    assert max(scores[size - 3 :]) < min(scores[: size - 3])
    used = {piece for cut in after.encode(text, out_type=str) for piece in cut}
    assert len(used & made.parts.keys()) > len(made.parts) / 2
    (long, unknown), (short, left) = figures(before, pieces[3:size], text), figures(after, pieces[3:], text)
    assert short < 0.7 * long and unknown > 0.01 and left == 0


def test_text_is_cut_as_before_but_where_it_has_a_new_piece(grown):
    """Lines of old languages, also of random letters of theirs: what no piece was trained for."""
    model, made, _ = grown
    before, after = processor_of(model), processor_of(made.model)
    draw = random.Random(1)
    lines = [line for lang in OLD for line in sentences(lang, 300, seed=2)]
    lines += [" ".join("".join(draw.choices("abdeghijklmnoqrstuwyz", k=6)) for _ in range(4)) for _ in range(300)]
    has_new = [any(piece.replace("▁", " ") in f" {line}" for piece in made.parts) for line in lines]
    assert sum(has_new) < len(lines) - 100
    assert changed(before, after, [line for line, new in zip(lines, has_new, strict=True) if not new]) == 0
    assert changed(before, after, lines) <= sum(has_new)


def test_bpe_cuts_as_the_joins_say_each_of_two_pieces_that_there_are():
    text = sentences("luo", 300)
    model = trained_pieces(sentences("en", 300), "bpe", 60)
    made = grow(model, processor_of(model), pieces_of(model), text, 1000)
    known, joined = set(pieces_of(model)), 0
    for piece in made.parts:
        halves = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        assert len(piece) == 1 or any(set(pair) <= known for pair in halves), piece
        known.add(piece)
        joined += len(piece) > 1
    cuts = processor_of(made.model).encode(text, out_type=str)
    neighbours = Counter(pair for cut in cuts for pair in pairwise(cut))
    inside = [count for (left, right), count in neighbours.items() if right[0] not in "▁." and left[-1] != "."]
    assert joined > 50 and max(inside, default=0) < LEAST_JOINS  # nothing is left to join


def test_pieces_that_the_dictionary_lacks_get_symbols_of_their_letters():
    model, text = trained_pieces(sentences("en", 300), "bpe", 60), sentences("en", 300)
    pieces = pieces_of(model)
    cut = Counter(piece for line in processor_of(model).encode(text, out_type=str) for piece in line)
    lacking = max((piece for piece in cut if len(piece) == 3 and "▁" not in piece), key=cut.__getitem__)
    made = grow(model, processor_of(model), [piece for piece in pieces if piece != lacking], text, 0)
    assert made.model == model and made.parts == {lacking: tuple(lacking)}
