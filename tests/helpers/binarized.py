"""Binarized sentences, as `fairseq-preprocess` writes them."""

from collections.abc import Iterable
from pathlib import Path

from fairseq.data import Dictionary, indexed_dataset
from torch import Tensor


def write_ids(prefix: str | Path, sentences: Iterable[Tensor], vocab_size: int = 100, impl: str = "mmap") -> str:
    """Write sentences of ids to `prefix.bin` and `prefix.idx`, and return the prefix."""
    builder = indexed_dataset.make_builder(f"{prefix}.bin", impl=impl, vocab_size=vocab_size)
    for sentence in sentences:
        builder.add_item(sentence)
    builder.finalize(f"{prefix}.idx")
    return str(prefix)


def write_words(prefix: str | Path, lines: Iterable[str], dictionary: Dictionary, impl: str = "mmap") -> None:
    """Write lines of words; those that the dictionary lacks become unknown."""
    write_ids(prefix, (dictionary.encode_line(line, add_if_not_exist=False) for line in lines), len(dictionary), impl)
