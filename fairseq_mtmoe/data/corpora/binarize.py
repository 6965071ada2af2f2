"""Binarized data as `fairseq-preprocess` writes it, with fairseq's own dictionary and dataset builder.

fairseq takes seconds to import and this is the only module of the pipeline that needs it, so import this one late.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import sentencepiece
import torch
from fairseq.data import Dictionary, indexed_dataset


def make_dictionary(model: sentencepiece.SentencePieceProcessor) -> Dictionary:
    """fairseq's dictionary of a model from `spm.train_model`: the same piece has the same id in both."""
    dictionary = Dictionary()
    for index in range(dictionary.nspecial, model.get_piece_size()):
        dictionary.add_symbol(model.id_to_piece(index))
    assert len(dictionary) == model.get_piece_size(), "a special symbol is an ordinary piece of the model"
    return dictionary


def write_dataset(prefix: Path, sentences: Iterable[list[int]], dictionary: Dictionary) -> None:
    """Write `<prefix>.bin` and `<prefix>.idx`: the ids of each sentence, and the end-of-sentence symbol."""
    builder = indexed_dataset.make_builder(f"{prefix}.bin", impl="mmap", vocab_size=len(dictionary))
    for ids in sentences:
        builder.add_item(torch.IntTensor([*ids, dictionary.eos()]))
    builder.finalize(f"{prefix}.idx")
