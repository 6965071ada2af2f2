"""Dictionaries, SentencePiece models and lines to translate: fairseq's values, or one sentence."""

import io
import os
import sys

import pytest
import sentencepiece
from fairseq.data import Dictionary
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from fairseq_mtmoe import register
from fairseq_mtmoe.data.corpora.vocabulary.training import train_model
from fairseq_mtmoe.data.fairseq_readers import read_lines
from fairseq_mtmoe.errors import UserError
from tests.helpers.catalogs import MESSAGES
from tests.helpers.damage import damaged, value_or_sentence

GOOD = "die 12\ndas 7\n\u3000 3\nHaus 5\nHaus 6 #fairseq:overwrite\nmadeupword0000 0\n"


@pytest.fixture(scope="module", autouse=True)
def readers():
    register()


def dictionary_of(folder, content: bytes) -> Dictionary:
    (folder / "dict.de.txt").write_bytes(content)
    return Dictionary.load(str(folder / "dict.de.txt"))


@pytest.mark.parametrize("text", [GOOD, GOOD.replace("\n", "\r\n"), GOOD.replace("\n", "\r"), GOOD[:-1]])
def test_a_dictionary_is_what_fairseq_reads(tmp_path, text):
    found = dictionary_of(tmp_path, text.encode())
    known = Dictionary.load(io.StringIO(GOOD))
    assert found == known and found.symbols == known.symbols and found.count == known.count


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("dïe 1\n".encode("latin-1"), r"dict\.de\.txt` must be UTF-8 text, but is not at byte 1; convert it"),
        (b"die 1\ndas 2\ndie 3\n", r"`line 3 of .*dict\.de\.txt` must be a symbol that no line before .* 'die 3' inst"),
        (b"<pad> 1\n", "`line 1 of .* is '<pad> 1' instead"),
        (b"die 1\n\ndas 2\n", "`line 2 of .* a symbol that no line before it has, a space and a count, but is '' inst"),
        (b"die 1\ndas\n", "`line 2 of .* but is 'das' instead"),
        (b"die one\n", "`line 1 of .* but is 'die one' instead"),
        (b"die #fairseq:overwrite\n", "`line 1 of .* but is 'die #fairseq:overwrite' instead"),
        (b"", r"dict\.de\.txt` must be a dictionary with a symbol and its count on each line, but is empty"),
    ],
)
def test_a_damaged_dictionary_is_one_sentence(tmp_path, content, sentence):
    with pytest.raises(UserError, match=sentence):
        dictionary_of(tmp_path, content)


def test_a_dictionary_that_is_no_file_is_one_sentence(tmp_path):
    os.mkfifo(tmp_path / "dict.de.txt")
    with pytest.raises(UserError, match=r"dict\.de\.txt` must be a dictionary, but is a pipe instead"):
        Dictionary.load(str(tmp_path / "dict.de.txt"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=damaged(GOOD.encode()))
def test_any_dictionary_is_a_value_or_a_sentence(tmp_path, content):
    found = value_or_sentence(lambda: dictionary_of(tmp_path, content))
    if found is not None:
        assert len(found) == len(found.symbols) == len(found.count) > found.nspecial
        assert all(0 <= found.index(symbol) < len(found) for symbol in found.symbols)


@pytest.fixture(scope="module")
def model() -> bytes:
    return train_model(MESSAGES, 54, 1.0)


def encoder_of(path):
    return SentencepieceBPE(OmegaConf.structured(SentencepieceConfig(sentencepiece_model=str(path))))


def test_a_sentencepiece_model_is_read_or_one_sentence(tmp_path, model):
    path = tmp_path / "spm.model"
    with pytest.raises(UserError, match=r"spm\.model` must be a SentencePiece model, but there is none"):
        encoder_of(path)
    path.write_bytes(model)
    expected = sentencepiece.SentencePieceProcessor(model_proto=model).encode("Open the file", out_type=str)
    assert encoder_of(path).encode("Open the file").split() == expected
    for content in (b"", model[:100], b"no model at all"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"spm\.model` must be a SentencePiece model, but is damaged or another"):
            encoder_of(path)
    with pytest.raises(UserError, match="`--sentencepiece-model` must be a file, with `--bpe sentencepiece`"):
        SentencepieceBPE(OmegaConf.structured(SentencepieceConfig()))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="must be a SentencePiece model, but is a pipe"):
        encoder_of(path)


@settings(max_examples=100, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_sentencepiece_model_is_a_value_or_a_sentence(tmp_path, model, data):
    (tmp_path / "spm.model").write_bytes(data.draw(damaged(model)))
    encoder = value_or_sentence(lambda: encoder_of(tmp_path / "spm.model"))
    if encoder is not None:
        assert isinstance(encoder.encode("Open the file"), str)


def test_lines_are_read_in_groups_and_end_at_line_feeds_alone(tmp_path, monkeypatch):
    content = "eins\r\nzwei\rdrei\u2028vier \n\nfünf".encode()
    lines = ["eins", "zwei\rdrei\u2028vier", "", "fünf"]
    (tmp_path / "text").write_bytes(content)
    assert list(read_lines(str(tmp_path / "text"), 3)) == [lines[:3], lines[3:]]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "ascii"))
    assert list(read_lines("-", 1)) == [[line] for line in lines]


def test_lines_that_cannot_be_read_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"eins\nzw\xffei\n"), "utf-8"))
    lines = read_lines("-", 1)
    assert next(lines) == ["eins"]
    with pytest.raises(UserError, match="Line 2 of the standard input must be UTF-8 text, but is not at byte 2;"):
        next(lines)
    (tmp_path / "text").write_bytes(b"\xc3")
    with pytest.raises(UserError, match=r"Line 1 of `.*text` must be UTF-8 text, but is not at byte 0"):
        list(read_lines(str(tmp_path / "text"), 1))
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UserError, match=r"`--input` must be text to translate, but .* cannot be read: (Is|No)"):
            list(read_lines(str(path), 1))
