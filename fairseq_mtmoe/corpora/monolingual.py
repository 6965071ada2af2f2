"""Text in one language from downloads, for `mtmoe translate`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import replacing
from fairseq_mtmoe.corpora.blocks import Content
from fairseq_mtmoe.corpora.readers.lines import read_lines
from fairseq_mtmoe.corpora.readers.unpacking import unpack
from fairseq_mtmoe.corpora.recipes.schema import Corpus


def write_text(corpus: Corpus, raw: Path) -> None:
    """Write the text of a back-translated corpus below `raw`, unless it is there.

    Lines without text, and those that are not in UTF-8, are left out.

    Raises:
        UserError: the download is damaged, or lacks the column of the text.
    """
    target = raw / corpus.files[1]
    origin = raw / corpus.text_of
    if target.exists():
        return
    column = corpus.fields.get("target")
    with replacing(target) as partial, tempfile.TemporaryDirectory(dir=partial.parent) as folder:
        unpacked = Path(folder) / "text"
        unpack({origin: unpacked})
        with partial.open("w", encoding="utf-8") as out:
            for batch in read_lines(Content(unpacked, origin)):
                for text in batch.texts:
                    sentence = text if column is None else _cell(text, int(column), origin)
                    if sentence.strip():
                        out.write(f"{sentence.strip()}\n")


def _cell(line: str, column: int, origin: Path) -> str:
    """Return a column of a line, from 1; nothing of an empty line."""
    cells = line.split("\t")
    if not line:
        return ""
    if len(cells) < column:
        raise UserError(
            f"`{origin}` has a line of {len(cells)} columns, but its text is in column {column}."
        )
    return cells[column - 1]
