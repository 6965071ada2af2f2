"""How large a vocabulary is, which text it is trained on, and the model that comes of it."""

import random
from collections import Counter

import numpy as np
import pytest
import sentencepiece

from fairseq_mtmoe.corpora.cleaning.keys import mixed
from fairseq_mtmoe.corpora.vocabulary import training as spm
from fairseq_mtmoe.corpora.vocabulary.training import default_size, sample_lines
from tests.helpers.refused import refused

WORDS = [a + b + c for a in ("gar", "mon", "tel") for b in ("di", "ro", "sa") for c in ("n", "lt", "mer")]
SIZES = {"de": 5000, "gu": 30, "en": 5030, "tlh": 0}


def lines(number):
    draw = random.Random(number)
    return [" ".join(draw.choices(WORDS, k=5)) for _ in range(number)]


def test_the_same_lines_give_the_same_model_with_fairseqs_ids_also_in_a_process_of_its_own():
    text = lines(300)
    content = spm.train_model(text, 40, 1.0)
    assert spm.train_model_apart(text, 40, 1.0) == content
    model = sentencepiece.SentencePieceProcessor(model_proto=content)
    assert model.get_piece_size() == 40
    assert [model.id_to_piece(i) for i in range(4)] == ["<s>", "<pad>", "</s>", "<unk>"]
    for size in (5000, 10):
        with refused("vocabulary: size", "--vocab-size"):
            spm.train_model_apart(text, size, 1.0)


def test_decoding_gives_the_text_back():
    # NFKC would rewrite the first line, and the second must not become special symbols
    text = ["½ of ＡＢＣ ﬁne", "three <s> four </s>", "1 < 2 > 0 / 3"]
    alphabet = [" ".join(text) for _ in range(20)]
    model = sentencepiece.SentencePieceProcessor(model_proto=spm.train_model(lines(300) + alphabet, 50, 1.0))
    assert [model.decode(model.encode(line)) for line in text] == text
    assert not {0, 1, 2, 3} & {piece for line in text for piece in model.encode(line)}


@pytest.mark.parametrize("space", [" ", ""], ids=["words", "no spaces"])
def test_lines_that_sentencepiece_would_skip_are_trained_on(space):
    draw = random.Random(1)
    long = [space.join(draw.choices(("เขา", "กินข้าว", "วันนี้"), k=size)) for size in (1500, 3000)]
    model = sentencepiece.SentencePieceProcessor(model_proto=spm.train_model([*lines(300), *long], 44, 1.0))
    assert model.unk_id() not in model.encode("กินข้าว")


def test_languages_have_quotas_by_temperature_and_small_ones_are_repeated_whole():
    for sizes, temperature, total, quotas in (
        ({"big": 1600, "small": 100}, 1, 170, [160, 10]),
        ({"big": 1600, "small": 100}, 2, 100, [80, 20]),
        ({"big": 10**6, "tiny": 1}, 1, 100, [100, 1]),
    ):
        assert list(map(len, sample_lines(sizes, temperature, 1, total).values())) == quotas
    drawn = sample_lines(SIZES, temperature=5, seed=1, total=3000)
    assert all(np.all(np.diff(of) >= 0) for of in drawn.values())
    copies, rest = divmod(len(drawn["gu"]), 30)
    times = Counter(drawn["gu"].tolist())
    assert len(times) == 30 and Counter(times.values()) == {copies: 30 - rest, copies + 1: rest}
    assert len(set(drawn["de"].tolist())) == len(drawn["de"]) < 5000 and drawn["de"].max() < 5000
    assert sample_lines({"de": 7, "fr": 7}, 1, 1)["fr"].tolist() == list(range(7))  # as there is room
    assert sample_lines({}, 1, 1) == {} == sample_lines({"de": 0}, 1, 1)


def test_the_draw_is_by_hash_whatever_is_looked_at_together(monkeypatch):
    one = sample_lines(SIZES, 5, 1, 3000)
    monkeypatch.setattr(spm, "_INDICES_AT_ONCE", 77)
    again, other = sample_lines(SIZES, 5, 1, 3000), sample_lines(SIZES, 5, 2, 3000)
    assert all(np.array_equal(one[lang], again[lang]) for lang in one) and not np.array_equal(one["de"], other["de"])
    draws = mixed(np.full(5000, 9, np.uint64), np.arange(5000, dtype=np.uint64))
    assert set(spm._drawn(5000, 40, 9).tolist()) == set(np.argsort(draws)[:40].tolist())


def test_the_size_grows_with_the_text_between_bounds():
    for sentences, length, characters, pieces in (
        (100, 100, 80, 1000),  # the least
        (2 * 160_000, 100, 80, 8160),  # IWSLT's size, for which 8,000 to 10,000 are usual
        (2 * 84_000, 100, 3000, 10_200),  # with Chinese
        (2 * 4_500_000, 100, 80, 32_000),  # WMT's
    ):
        assert default_size(sentences, ["x" * length] * 10, characters) == pieces
