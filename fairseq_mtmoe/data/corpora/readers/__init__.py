"""Raw files of sentence pairs, read as a stream of blocks, whatever format they are in.

`read` is all that others need; what is packed is unpacked before (`unpacking`). Lines in = pairs in blocks + what bad
lines stand for (`BadLine.lost`), as far as a file can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

from fairseq_mtmoe.data.corpora.blocks import BLOCK, BadLine, Block, CorpusFiles
from fairseq_mtmoe.data.corpora.readers.errors import BAD_REASONS, HARMLESS, Fault, OnBadLine, check, ends_run
from fairseq_mtmoe.data.corpora.readers.jsonl import read_jsonl
from fairseq_mtmoe.data.corpora.readers.markup import read_tmx, read_wmt
from fairseq_mtmoe.data.corpora.readers.messages import read_gettext
from fairseq_mtmoe.data.corpora.readers.moses import read_iwslt, read_moses, read_text
from fairseq_mtmoe.data.corpora.readers.recognising import recognise
from fairseq_mtmoe.data.corpora.readers.segments import Pairs, assemble
from fairseq_mtmoe.data.corpora.readers.sgm import read_sgm
from fairseq_mtmoe.data.corpora.readers.tsv import read_tsv
from fairseq_mtmoe.errors import raise_invalid

__all__ = ["BAD_REASONS", "FORMATS", "HARMLESS", "ON_BAD_LINE", "OnBadLine", "check", "ends_run", "read"]

_READERS: dict[str, tuple[tuple[int, ...], Callable[[CorpusFiles], Iterator[Pairs | BadLine]]]] = {
    "moses": ((2,), read_moses),
    "text": ((2,), read_text),
    "iwslt": ((2,), read_iwslt),
    "tsv": ((1,), read_tsv),
    "jsonl": ((1,), read_jsonl),
    "sgm": ((1, 2), read_sgm),
    "wmt": ((1,), read_wmt),
    "tmx": ((1,), read_tmx),
    "po": ((1,), read_gettext),
    "mo": ((1,), read_gettext),
}
"""By format, how many files a corpus may have, and what reads them."""

FORMATS = ("auto", *_READERS)
"""What `CorpusFiles.format` may be; `auto` looks at the content."""

ON_BAD_LINE: tuple[OnBadLine, ...] = get_args(OnBadLine)


def read(files: CorpusFiles, block: int = BLOCK, on_bad_line: OnBadLine = "drop") -> Iterator[Block | BadLine]:
    """The sentence pairs of a corpus, with what could not be read before the block that follows it.

    Args:
        files: where the corpus is.
        block: pairs per block; the last has fewer, and so has one of very long sentences.
        on_bad_line: which bad lines end the run: see `errors.ends_run`.

    Raises:
        UserError: a file is missing, is in no known format or has not the columns or keys that `fields` says, or there
            is a bad line that ends the run.
    """
    for item in assemble(files, _found(files), block):
        if isinstance(item, BadLine):
            check(item, on_bad_line, files)
        yield item


def _found(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    if files.format not in FORMATS:
        raise_invalid(f"format of {files.name}", f"one of {', '.join(FORMATS)}", files.format)
    try:
        form = recognise(files) if files.format == "auto" else files.format
        if form is None:
            return
        numbers, reader = _READERS[form]
        if len(files.paths) not in numbers:
            rule = " or ".join(map(str, numbers))
            raise_invalid(f"files of {files.name}", f"{rule} in the format {form}", [str(path) for path in files.paths])
        yield from reader(files)
    except Fault as fault:
        yield BadLine(str(files.paths[0]), 1, fault.reason, fault.message, fault.lost)
