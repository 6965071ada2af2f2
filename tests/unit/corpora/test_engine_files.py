"""Ids and the files that hold them, as fairseq's own code makes them."""

import numpy as np
import pytest
import sentencepiece
import torch
from fairseq.data import Dictionary

from fairseq_mtmoe.corpora.binarize import write_dictionary, writer
from fairseq_mtmoe.corpora.engine.encoding import encode_lines
from fairseq_mtmoe.corpora.vocabulary.pieces import load
from fairseq_mtmoe.corpora.vocabulary.training import train_model
from tests.helpers.binarized import write_ids
from tests.helpers.raw_corpora import sentences


@pytest.mark.parametrize("symbols", [65499, 65500])
def test_files_are_those_of_fairseqs_builder(symbols, tmp_path):
    draw = np.random.default_rng(1)
    expected = [draw.integers(4, symbols, draw.integers(1, 12)) for _ in range(50)]
    write_ids(tmp_path / "theirs", map(torch.IntTensor, expected), symbols)
    with writer(tmp_path / "ours", symbols) as add:
        for part in (expected[:3], expected[3:4], [], expected[4:30], expected[30:]):
            add(np.concatenate([np.zeros(0, np.int64), *part]), np.array(list(map(len, part)), np.int32))
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"ours.{suffix}").read_bytes() == (tmp_path / f"theirs.{suffix}").read_bytes()
    assert sorted(path.suffix for path in tmp_path.glob("ours*")) == [".bin", ".idx"]


def test_the_dictionary_and_ids_are_fairseqs(tmp_path):
    content = train_model(sentences(1, 200), 50, 1.0)
    model = sentencepiece.SentencePieceProcessor(model_proto=content)
    pieces = [model.id_to_piece(index) for index in range(4, model.get_piece_size())]
    own, other = Dictionary(), Dictionary()  # the other one in another order, without some pieces, with a character
    for dictionary, symbols in ((own, pieces), (other, [*pieces[:3:-1], "Ж"])):
        for symbol in symbols:
            dictionary.add_symbol(symbol)
        dictionary.save(str(tmp_path / "theirs.txt"))
        found = load(content, None if dictionary is own else tmp_path / "theirs.txt")
        write_dictionary(tmp_path / "ours.txt", found.symbols)
        assert (tmp_path / "ours.txt").read_bytes() == (tmp_path / "theirs.txt").read_bytes()
        lines = ["", *sentences(2, 5), "ba Ж do", "Ж", "ЖЖ Ж", "ba"]
        others = {} if dictionary is own else {"Ж": len(other) - 1}
        ids, lengths = encode_lines(lines, model, found.ids, others)
        spelled = [" ".join(model.encode(line, out_type=str)) for line in lines]
        expected = [dictionary.encode_line(line, add_if_not_exist=False).tolist() for line in spelled]
        assert [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] == expected
