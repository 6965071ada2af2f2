"""A model and a dictionary: ours, mBART's, and what does not fit together."""

import io
import re

import numpy as np
import pytest
import sentencepiece
from fairseq.data import Dictionary

from fairseq_mtmoe.data.corpora.vocabulary import known_characters, load
from fairseq_mtmoe.data.corpora.vocabulary.training import train_model
from fairseq_mtmoe.errors import UserError

TEXT = [f"{a}{b} {c}{a} {b}" for a in ("mor", "gel", "tir") for b in ("dan", "sup") for c in ("ak", "ne", "ol")] * 20
SIZE = 26


@pytest.fixture(scope="module")
def ours() -> bytes:
    return train_model(TEXT, SIZE, 1.0)


@pytest.fixture(scope="module")
def mbarts() -> bytes:
    """A model with SentencePiece's own places for special pieces, as mBART's has them."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=model, vocab_size=SIZE, minloglevel=2
    )
    return model.getvalue()


def processor_of(model: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def test_our_own_models_have_the_ids_of_the_dictionary_made_of_them(ours):
    pieces = load(ours)
    assert pieces.ids.tolist() == list(range(SIZE))
    processor = processor_of(ours)
    assert pieces.symbols == [processor.id_to_piece(number) for number in range(4, SIZE)]


def written(folder, symbols) -> str:
    path = folder / "dict.txt"
    path.write_text("".join(f"{symbol} 1\n" for symbol in symbols), encoding="utf-8")
    return path


def test_a_given_dictionary_decides_by_the_text_of_the_pieces(mbarts, tmp_path):
    processor = processor_of(mbarts)
    names = [processor.id_to_piece(piece) for piece in range(3, SIZE)]
    path = written(tmp_path, [*reversed(names[1:]), "[de_DE]"])  # without the first one
    pieces = load(mbarts, path)
    dictionary = Dictionary.load(str(path))
    assert pieces.symbols == dictionary.symbols[4:]
    assert pieces.ids[3:].tolist() == [dictionary.index(name) for name in names]
    assert pieces.ids[:4].tolist() == [dictionary.unk(), dictionary.bos(), dictionary.eos(), dictionary.unk()]
    sentence = TEXT[7]
    fairseqs = dictionary.encode_line(" ".join(processor.encode(sentence, out_type=str)), add_if_not_exist=False)
    assert [*pieces.ids[processor.encode(sentence)].tolist(), dictionary.eos()] == fairseqs.tolist()


def test_in_mbarts_order_ids_are_one_above(mbarts, tmp_path):
    processor = processor_of(mbarts)
    names = [processor.id_to_piece(piece) for piece in range(3, SIZE)]
    for pieces in (load(mbarts), load(mbarts, written(tmp_path, names))):
        assert pieces.ids[3:].tolist() == list(range(4, SIZE + 1))
        assert pieces.symbols == names


def test_characters_that_are_known(ours, tmp_path):
    processor = processor_of(ours)
    known = known_characters(processor, load(ours).ids)
    letters = {character for line in TEXT for character in line}
    assert {chr(code) for code in np.flatnonzero(known)} == letters
    names = [processor.id_to_piece(piece) for piece in range(4, SIZE)]
    fewer = load(ours, written(tmp_path, [name for name in names if name not in ("d", "▁d")]))
    assert {chr(code) for code in np.flatnonzero(known_characters(processor, fewer.ids))} == letters - {"d"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("▁a 3\nb\n", "must have a symbol and a number in each line, but line 2 is 'b'"),
        ("▁a 3\nb x\n", "line 2 is 'b x'"),
        ("▁a 3\nb 1\n▁a 1\n", "each symbol once, but lines 1 and 3"),
        ("<s> 1\n▁a 3\n", "must not have <s> (line 1)"),
        ("▁xyz 3\nq 1\n", "has only 0 of its 26 pieces"),
    ],
)
def test_dictionaries_that_do_not_fit(ours, tmp_path, text, sentence):
    path = tmp_path / "dict.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(sentence)) as caught:
        load(ours, path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("model", [b"", b"no model"])
def test_what_is_no_model(model):
    with pytest.raises(UserError, match=r"`vocabulary.model` must be a SentencePiece model, but"):
        load(model)
