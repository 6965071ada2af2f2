"""Which format a corpus is in, by the beginning of its content."""

from __future__ import annotations

from fairseq_mtmoe.data.corpora.blocks import CorpusFiles
from fairseq_mtmoe.data.corpora.readers.faults import Fault
from fairseq_mtmoe.data.corpora.readers.unpacking import open_stream
from fairseq_mtmoe.errors import UserError

_HEAD = 1 << 16


def recognise(files: CorpusFiles) -> str | None:
    """One of `FORMATS`, or None where there is nothing at all.

    Raises:
        UserError: the content is of no known format.
        Fault: the file breaks before it begins.
    """
    two = len(files.paths) == 2
    try:
        with open_stream(files.paths[0]) as stream:
            head = stream.peek(_HEAD)
            if not head and not two:
                stream.read(1)  # says what is wrong
                return None
    except Fault:
        if not two:
            raise
        head = b""
    if two:
        return "moses"
    if b"\t" in head:
        return "tsv"
    raise UserError(
        f"`{files.paths[0]}` must be a corpus in one of the formats that can be read, but its content is of none; "
        "give both files of a pair, or say its `format`."
    )
