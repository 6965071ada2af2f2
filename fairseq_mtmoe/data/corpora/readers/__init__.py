"""Raw files of sentence pairs, read as a stream of blocks, whatever format they are in and whatever they are packed in.

`read` is all that others need. Lines in = pairs in blocks + what bad lines stand for (`BadLine.lost`), always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

from fairseq_mtmoe.data.corpora.blocks import BLOCK, BadLine, Block, CorpusFiles
from fairseq_mtmoe.data.corpora.readers.assembling import Pairs, assemble
from fairseq_mtmoe.data.corpora.readers.datasets import read_datasets
from fairseq_mtmoe.data.corpora.readers.faults import (
    BAD_REASONS,
    HARMLESS,
    Fault,
    OnBadLine,
    check,
    ends_run,
)
from fairseq_mtmoe.data.corpora.readers.iwslt import read_iwslt
from fairseq_mtmoe.data.corpora.readers.jsonl import read_jsonl
from fairseq_mtmoe.data.corpora.readers.mo import read_mo
from fairseq_mtmoe.data.corpora.readers.moses import read_moses
from fairseq_mtmoe.data.corpora.readers.po import read_po
from fairseq_mtmoe.data.corpora.readers.recognising import recognise
from fairseq_mtmoe.data.corpora.readers.sgm import read_sgm
from fairseq_mtmoe.data.corpora.readers.text import read_text
from fairseq_mtmoe.data.corpora.readers.tmx import read_tmx
from fairseq_mtmoe.data.corpora.readers.tsv import read_tsv
from fairseq_mtmoe.data.corpora.readers.wmt import read_wmt
from fairseq_mtmoe.data.corpora.readers.xliff import read_xliff
from fairseq_mtmoe.errors import must_be

__all__ = [
    "BAD_REASONS",
    "FORMATS",
    "HARMLESS",
    "ON_BAD_LINE",
    "OnBadLine",
    "check",
    "ends_run",
    "read",
]

_READERS: dict[str, Callable[[CorpusFiles], Iterator[Pairs | BadLine]]] = {
    "moses": read_moses,
    "text": read_text,
    "iwslt": read_iwslt,
    "tsv": read_tsv,
    "jsonl": read_jsonl,
    "sgm": read_sgm,
    "wmt": read_wmt,
    "tmx": read_tmx,
    "xliff": read_xliff,
    "po": read_po,
    "mo": read_mo,
    "datasets": read_datasets,
}

FORMATS = ("auto", *_READERS)
"""What `CorpusFiles.format` may be; `auto` looks at the content."""

ON_BAD_LINE: tuple[OnBadLine, ...] = get_args(OnBadLine)


def read(files: CorpusFiles, block: int = BLOCK, on_bad_line: OnBadLine = "drop") -> Iterator[Block | BadLine]:
    """The sentence pairs of a corpus, with what could not be read before the block that follows it.

    Args:
        files: where the corpus is.
        block: pairs per block; the last has fewer, and so has one of very long sentences.
        on_bad_line: which bad lines end the run: see `faults.ends_run`.

    Raises:
        UserError: a file is missing, is in no known format or has not the columns or keys that `fields` says, or there
            is a bad line that ends the run.
    """
    for item in assemble(files, _found(files), block):
        if isinstance(item, BadLine):
            check(item, on_bad_line, files)
        yield item


def _check_number(files: CorpusFiles, form: str | None) -> None:
    """See that there are as many files as the format has."""
    allowed = {"moses": (2,), "text": (2,), "iwslt": (2,), "sgm": (1, 2)}.get(
        form or "", (1, 2) if form is None else (1,)
    )
    if len(files.paths) not in allowed:
        rule = " or ".join(map(str, allowed))
        must_be(f"files of {files.name}", f"{rule} in the format {form}", [str(path) for path in files.paths])


def _found(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    if files.format not in FORMATS:
        must_be(f"format of {files.name}", f"one of {', '.join(FORMATS)}", files.format)
    try:
        form = recognise(files) if files.format == "auto" else files.format
        _check_number(files, form)
        if form is not None:
            yield from _READERS[form](files)
    except Fault as fault:
        yield BadLine(str(files.paths[0]), 1, fault.reason, fault.message, fault.lost)
