import random

import pytest
import sentencepiece

from fairseq_mtmoe.data.corpora.vocabulary import training as spm
from fairseq_mtmoe.errors import UserError

WORDS = [a + b + c for a in ("gar", "mon", "tel") for b in ("di", "ro", "sa") for c in ("n", "lt", "mer")]


def lines(number, words=WORDS):
    draw = random.Random(number)
    return [" ".join(draw.choices(words, k=5)) for _ in range(number)]


def test_quotas_follow_the_temperature():
    sizes = {"big": 1600, "small": 100}
    assert spm.temperature_quotas(sizes, 1, 170) == {"big": 160, "small": 10}
    assert spm.temperature_quotas(sizes, 2, 100) == {"big": 80, "small": 20}
    assert spm.temperature_quotas(sizes, 1e9, 100) == {"big": 50, "small": 50}
    assert spm.temperature_quotas({"big": 10**9, "tiny": 1}, 1, 100) == {"big": 100, "tiny": 1}


def test_the_same_lines_give_the_same_model_with_fairseqs_ids():
    text = lines(300)
    first, again = (spm.train_model(text, 40, 1.0) for _ in range(2))
    assert first == again
    model = sentencepiece.SentencePieceProcessor(model_proto=first)
    assert model.get_piece_size() == 40
    assert [model.id_to_piece(i) for i in range(4)] == ["<s>", "<pad>", "</s>", "<unk>"]


def test_decoding_gives_the_text_back():
    # NFKC would rewrite the first line, and the second must not become special symbols
    text = ["½ of ＡＢＣ ﬁne", "three <s> four </s>", "1 < 2 > 0 / 3"]
    alphabet = [" ".join(text) for _ in range(20)]
    model = sentencepiece.SentencePieceProcessor(model_proto=spm.train_model(lines(300) + alphabet, 50, 1.0))
    assert [model.decode(model.encode(line)) for line in text] == text
    assert not {0, 1, 2, 3} & {piece for line in text for piece in model.encode(line)}


def test_a_vocabulary_that_does_not_fit():
    with pytest.raises(UserError, match=r"`--vocab-size` must be at most \d+ for this text, but is 5000 instead\."):
        spm.train_model(lines(50), 5000, 1.0)
    with pytest.raises(UserError, match=r"`--vocab-size` must be at least \d+, the number of characters"):
        spm.train_model(lines(50), 10, 1.0)


def test_a_process_of_its_own_gives_the_same_model_and_the_same_errors():
    text = lines(100)
    assert spm.train_model_apart(text, 40, 1.0) == spm.train_model(text, 40, 1.0)
    with pytest.raises(UserError, match="`--vocab-size` must be at most"):
        spm.train_model_apart(text, 5000, 1.0)


def test_what_sentencepiece_says_otherwise_is_no_users_error():
    with pytest.raises(RuntimeError, match=r"SentencePiece failed: .*sentences"):
        spm.train_model([], 40, 1.0)
