"""The jobs of the first stage: a worker opens raw files itself, reads a part of a corpus, and cleans it.

What goes to a worker says where the part is; the text never passes through another process. Corpora whose pairs are
lines are cut into parts of a block each, any other is one job, which makes one block after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairseq_mtmoe.data.corpora.blocks import BadLine, Block, CorpusFiles
from fairseq_mtmoe.data.corpora.cleaning import Cleaner, unfiltered
from fairseq_mtmoe.data.corpora.cleaning.normalising import normalise
from fairseq_mtmoe.data.corpora.engine.bad_lines import LIST, BadLines
from fairseq_mtmoe.data.corpora.engine.store import Stage, is_saved, packed, save
from fairseq_mtmoe.data.corpora.readers import OnBadLine, read
from fairseq_mtmoe.data.corpora.readers.splitting import parts_of
from fairseq_mtmoe.data.corpora.recipes import Filters, Role

PART_BYTES = 16 << 20
"""Of a part, on both sides together: a block of 50,000 pairs has fewer unless they are over 300 bytes each."""


@dataclass(frozen=True)
class How:
    """What is done to a corpus' pairs.

    Attributes:
        source_lang, target_lang: of the pairs as they are to be, and so of its files where these are not turned.
    """

    filters: Filters | None  # None: text is taken as it is
    source_lang: str
    target_lang: str
    role: Role
    is_turned: bool
    block: int  # pairs
    on_bad_line: OnBadLine


@dataclass(frozen=True)
class PartJob:
    """A part of a corpus, or all of it.

    Attributes:
        corpus: the number by which it is known to whoever waits for the result.
        number: of the part and its block; None for a whole corpus, which has as many as it needs.
    """

    corpus: int
    files: CorpusFiles
    how: How
    stage: Stage
    number: int | None

    @property
    def size(self) -> int:
        """The bytes of its files."""
        sizes = [content.path.stat().st_size for content in self.files.contents]
        if self.files.part is None:
            return sum(sizes)
        spans = zip(self.files.part.spans, sizes, strict=True)
        return sum((size if end is None else end) - begin for (begin, end), size in spans)

    @property
    def out(self) -> Path:
        """Of a part, the file of its block."""
        assert self.number is not None
        return self.stage.block(self.number)


class Done(NamedTuple):
    """What came of a job."""

    corpus: int
    number: int | None
    pairs: int
    blocks: int  # that there are now
    bad: dict[str, Any] | None  # of a whole corpus, what is known of its bad lines; a part's are in its block's summary


def cut(job: tuple[int, CorpusFiles, int]) -> tuple[int, list[CorpusFiles]]:
    """A corpus' number and its parts: none, where it has to be read as a whole.

    Args:
        job: the number, the corpus, and how many pairs a part has at most.
    """
    number, files, block = job
    return number, parts_of(files, block, PART_BYTES)


def list_of(stage: Stage, number: int | None) -> Path:
    """The file that lists the bad lines of a part, or of a whole corpus."""
    return stage.folder / (LIST if number is None else f"{number:06d}.{LIST}")


def clean_part(job: PartJob) -> Done:
    """Read, clean and write down a part of a corpus, or all blocks of it that are not there from an earlier run."""
    with BadLines(list_of(job.stage, job.number), job.files) as bad:
        if job.number is None:
            pairs, blocks = _clean_whole(job, bad)
        else:
            block = _joined(job.files, list(_blocks(job, bad)))
    if job.number is None:
        return Done(job.corpus, None, pairs, blocks, bad.result())
    clean_block(block, job.how, job.out, bad.result())  # which says that its list of bad lines is there, too
    return Done(job.corpus, job.number, len(block.source), 1, None)


def _clean_whole(job: PartJob, bad: BadLines) -> tuple[int, int]:
    """How many pairs and blocks there are."""
    pairs = number = 0
    for number, block in enumerate(_blocks(job, bad), start=1):
        out = job.stage.block(number - 1)
        if not is_saved(out):
            clean_block(block, job.how, out, {})
        pairs += len(block.source)
    return pairs, number


def _blocks(job: PartJob, bad: BadLines) -> Iterator[Block]:
    """The reader's blocks, with the sides as the corpus' pair has them; bad lines are noted.

    The other direction's have no further references: those are of its target alone.
    """
    for item in read(job.files, job.how.block, job.how.on_bad_line):
        if isinstance(item, BadLine):
            bad.note(item)
        elif job.how.is_turned:
            yield replace(item, source=item.target, target=item.source, references=())
        else:
            yield item


def _joined(files: CorpusFiles, blocks: Sequence[Block]) -> Block:
    """One block of all those of a part: of one, unless its lines are enormous."""
    if len(blocks) == 1:
        return blocks[0]
    source = [text for block in blocks for text in block.source]
    target = [text for block in blocks for text in block.target]
    return Block(files.name, 0, source, target, np.concatenate([np.zeros(0, np.int64), *(one.lines for one in blocks)]))


def clean_block(block: Block, how: How, out: Path, bad: dict[str, Any]) -> None:
    """Clean a block and write it down.

    Args:
        bad: what is known of the bad lines of its part.
    """
    if how.filters is None:
        cleaned = unfiltered(block, how.role)
    else:
        cleaned = _cleaner(how.filters, how.source_lang, how.target_lang, how.role)(block)
    texts = {"source": cleaned.source, "target": cleaned.target}
    texts |= {f"reference{number}": list(map(normalise, lines)) for number, lines in enumerate(block.references)}
    summary = {
        "read": len(block.source),
        "kept": len(cleaned.source),
        "references": len(block.references),
        "changes": [asdict(side) for side in cleaned.changes],
        "counts": cleaned.counts,
        "samples": cleaned.samples,
        "bad": bad,
    }
    keys = {name: getattr(cleaned, name) for name in ("lines", "exact", "near", "source_keys", "target_keys")}
    arrays = {name: array for text, lines in texts.items() for name, array in packed(text, lines).items()}
    save(out, summary, **arrays, **keys)


@lru_cache(4)
def _cleaner(filters: Filters, source_lang: str, target_lang: str, role: Role) -> Cleaner:
    return Cleaner(filters, source_lang, target_lang, role)
