"""Ids and the files that hold them, as fairseq's own code makes them."""

import numpy as np
import pytest
import sentencepiece
import torch
from fairseq.data import Dictionary, data_utils, indexed_dataset

from fairseq_mtmoe.data.corpora import binarize
from fairseq_mtmoe.data.corpora.binarize import write_dictionary, writer
from fairseq_mtmoe.data.corpora.engine.assembling import shards_of, sizes_of, write_side
from fairseq_mtmoe.data.corpora.engine.encoding import encode_lines
from fairseq_mtmoe.data.corpora.engine.store import Saved, packed, save
from fairseq_mtmoe.data.corpora.recipes.schema import Shards
from fairseq_mtmoe.data.corpora.vocabulary.pieces import load
from fairseq_mtmoe.data.corpora.vocabulary.training import train_model
from tests.helpers.raw_corpora import sentences


def random_sentences(symbols, count, seed=1):
    draw = np.random.default_rng(seed)
    return [draw.integers(4, symbols, draw.integers(1, 12)) for _ in range(count)]


def flat(parts):
    return np.concatenate([np.zeros(0, np.int64), *parts]), np.array([len(part) for part in parts], np.int32)


@pytest.mark.parametrize("symbols", [65499, 65500])
def test_files_are_those_of_fairseqs_builder(symbols, tmp_path, monkeypatch):
    monkeypatch.setattr(binarize, "_LENGTHS_AT_ONCE", 7)
    expected = random_sentences(symbols, 50)
    builder = indexed_dataset.make_builder(str(tmp_path / "theirs.bin"), impl="mmap", vocab_size=symbols)
    for sentence in expected:
        builder.add_item(torch.IntTensor(sentence))
    builder.finalize(str(tmp_path / "theirs.idx"))
    with writer(tmp_path / "ours", symbols) as add:
        for start in (0, 3, 4, 30):
            add(*flat(expected[start : {0: 3, 3: 4, 4: 30, 30: 50}[start]]))
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"ours.{suffix}").read_bytes() == (tmp_path / f"theirs.{suffix}").read_bytes()
    assert sorted(path.suffix for path in tmp_path.glob("ours*")) == [".bin", ".idx"]


def test_sentences_are_dealt_out_in_turn(tmp_path, number=3):
    expected = random_sentences(100, 20)
    files = []
    for block, part in enumerate((expected[:8], [], expected[8:9], expected[9:])):
        ids, lengths = flat(part)
        files.append(tmp_path / f"{block}.npz")
        save(files[-1], {}, source_ids=ids.astype(np.uint16), source_lengths=lengths)
    prefixes = [tmp_path / f"shard{shard}" for shard in range(number)]
    assert write_side(files, "source", prefixes, 100, True) == 20
    for shard, prefix in enumerate(prefixes):
        found = data_utils.load_indexed_dataset(str(prefix), None)
        assert [sentence.tolist() for sentence in found] == [sentence.tolist() for sentence in expected[shard::number]]
        assert len(found) == sizes_of(20, number)[shard]


def test_a_shard_for_each_so_many_pairs_and_no_more_than_are_wanted():
    for pairs, most, number in ((1, 4, 1), (100, 4, 1), (101, 4, 2), (401, 4, 4), (10_000, 1, 1)):
        assert shards_of(pairs, Shards(pairs=100, most=most)) == number


def given_dictionary(model, kind):
    """A dictionary for a model: of its own, or in another order and without some pieces."""
    pieces = [model.id_to_piece(index) for index in range(4, model.get_piece_size())]
    dictionary = Dictionary()
    for piece in {"own": pieces, "some missing": pieces[::-2]}[kind]:
        dictionary.add_symbol(piece)
    return dictionary


@pytest.mark.parametrize("kind", ["own", "some missing"])
def test_ids_are_those_of_fairseqs_dictionary(kind, tmp_path):
    content = train_model(sentences(1, 200), 50, 1.0)
    model = sentencepiece.SentencePieceProcessor(model_proto=content)
    dictionary = given_dictionary(model, kind)
    if kind == "own":
        dictionary.save(str(tmp_path / "theirs.txt"))
        write_dictionary(tmp_path / "ours.txt", load(content).symbols)
        assert (tmp_path / "ours.txt").read_bytes() == (tmp_path / "theirs.txt").read_bytes()
    table = np.array([dictionary.index(model.id_to_piece(piece)) for piece in range(model.get_piece_size())], np.int32)
    lines = ["", *sentences(2, 5), "ba Ж do", "Ж", "ba"]
    ids, lengths = encode_lines(lines, model, table)
    ends = np.cumsum(lengths)
    assert [ids[end - length : end].tolist() for end, length in zip(ends, lengths, strict=True)] == [
        dictionary.encode_line(" ".join(model.encode(line, out_type=str)), add_if_not_exist=False).tolist()
        for line in lines
    ]
    assert encode_lines([], model, table)[0].tolist() == []


def test_some_lines_are_those_of_all_lines(tmp_path):
    for lines in ([], [""], ["", ""], ["a", "", "Straße ½", "漢字", ""], ["x\x85y\u2028z", "\r"]):
        save(tmp_path / "block.npz", {}, **packed("source", lines))
        with Saved(tmp_path / "block.npz") as saved:
            assert saved.lines("source") == lines
            for rows in (np.arange(len(lines)), np.arange(len(lines))[::-2], np.zeros(2 * bool(lines), np.int64)):
                assert saved.some_lines("source", rows) == [lines[row] for row in rows]
