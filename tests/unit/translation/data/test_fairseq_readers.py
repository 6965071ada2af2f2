"""Dictionaries, SentencePiece models and lines to translate: fairseq's values, or one sentence."""

import io
import sys

import pytest
import sentencepiece
from fairseq.data import Dictionary
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig
from hypothesis import HealthCheck, given, settings
from omegaconf import OmegaConf

from fairseq_mtmoe import register
from fairseq_mtmoe.training.fairseq_readers import read_lines
from tests.helpers.damage import damaged, value_or_sentence
from tests.helpers.piece_models import trained_pieces
from tests.helpers.refused import refused

GOOD = "die 12\ndas 7\n\u3000 3\nHaus 5\nHaus 6 #fairseq:overwrite\nmadeupword0000 0\n"
MODEL = trained_pieces(["Open the file", "Close the folder"] * 20, "unigram", 25)


@pytest.fixture(scope="module", autouse=True)
def readers():
    register()


def dictionary_of(folder, content: bytes) -> Dictionary:
    (folder / "dict.de.txt").write_bytes(content)
    return Dictionary.load(str(folder / "dict.de.txt"))


@pytest.mark.parametrize("text", [GOOD, GOOD.replace("\n", "\r"), GOOD[:-1]])
def test_a_dictionary_is_what_fairseq_reads(tmp_path, text):
    found = dictionary_of(tmp_path, text.encode())
    known = Dictionary.load(io.StringIO(GOOD))
    assert found == known and found.symbols == known.symbols and found.count == known.count


def test_a_damaged_dictionary_is_one_sentence(tmp_path):
    for content in (b"", "dïe 1\n".encode("latin-1")):
        with refused("dict.de.txt"):
            dictionary_of(tmp_path, content)
    with refused(f"line 3 of {tmp_path}/dict.de.txt"):
        dictionary_of(tmp_path, b"die 1\ndas 2\ndie 3\n")


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=damaged(GOOD.encode()))
def test_any_dictionary_is_a_value_or_a_sentence(tmp_path, content):
    found = value_or_sentence(lambda: dictionary_of(tmp_path, content))
    if found is not None:
        assert len(found) == len(found.symbols) == len(found.count) > found.nspecial
        assert all(0 <= found.index(symbol) < len(found) for symbol in found.symbols)


def encoder_of(path):
    return SentencepieceBPE(OmegaConf.structured(SentencepieceConfig(sentencepiece_model=str(path))))


def test_a_sentencepiece_model_is_read_or_one_sentence(tmp_path):
    path = tmp_path / "spm.model"
    with refused("spm.model"):
        encoder_of(path)
    path.write_bytes(MODEL[:100])
    with refused("spm.model"):
        encoder_of(path)
    path.write_bytes(MODEL)
    expected = sentencepiece.SentencePieceProcessor(model_proto=MODEL).encode("Open the file", out_type=str)
    assert encoder_of(path).encode("Open the file").split() == expected
    with refused("--sentencepiece-model"):
        SentencepieceBPE(OmegaConf.structured(SentencepieceConfig()))


def test_lines_are_read_in_groups_and_end_at_line_feeds_alone(tmp_path, monkeypatch):
    content = "eins\r\nzwei\rdrei\u2028vier \n\nfünf".encode()
    lines = ["eins", "zwei\rdrei\u2028vier", "", "fünf"]
    (tmp_path / "text").write_bytes(content)
    assert list(read_lines(str(tmp_path / "text"), 3)) == [lines[:3], lines[3:]]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "ascii"))
    assert list(read_lines("-", 1)) == [[line] for line in lines]


def test_lines_that_cannot_be_read_are_one_sentence(tmp_path):
    (tmp_path / "text").write_bytes(b"eins\nzw\xffei\n")
    lines = read_lines(str(tmp_path / "text"), 1)
    assert next(lines) == ["eins"]
    with refused("text"):
        next(lines)
    with refused("--input"):
        list(read_lines(str(tmp_path / "none"), 1))
