"""Two files of text that is somebody's choice already: every line counts, whatever is in it, and no fault is let pass.

What has no text on one side is a pair as well: sets that are evaluated on keep all of their lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

import numpy as np

from fairseq_mtmoe.data.corpora.blocks import BadLine, CorpusFiles
from fairseq_mtmoe.data.corpora.readers.assembling import Pairs
from fairseq_mtmoe.data.corpora.readers.moses import unequal
from fairseq_mtmoe.io.files import text_batches

_AT_ONCE = 2000  # lines


def read_text(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """The pairs of two files in UTF-8, line by line; lines end in line feeds alone (`io.files.text_batches`).

    Lines that one of them has more are one `BadLine` at the end.

    Raises:
        UserError: a file is no text.
    """
    spans = files.part.spans if files.part else ((0, None), (0, None))
    sides = [text_batches(path, span=span) for path, span in zip(files.paths, spans, strict=True)]
    one, other = map(chain.from_iterable, sides)
    done = files.part.first - 1 if files.part else 0
    while True:
        source, target = list(islice(one, _AT_ONCE)), list(islice(other, _AT_ONCE))
        both = min(len(source), len(target))
        if both:
            yield Pairs(source[:both], target[:both], np.arange(done + 1, done + 1 + both, dtype=np.int64))
        done += both
        if len(source) != len(target):
            rest = max(len(source), len(target)) - both + sum(1 for _ in chain(one, other))
            longer = files.paths[len(source) < len(target)]
            yield unequal(str(longer), done + rest, done)
            return
        if not both:
            return
