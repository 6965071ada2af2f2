"""A look at the beginning of each data set that an index names.

Indexes have mistakes: files of another language, or one file for both sides. So what a data set's
name says is compared with its text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.corpora.blocks import Block, CorpusFiles
from fairseq_mtmoe.corpora.cleaning.languages import is_distant
from fairseq_mtmoe.corpora.readers import read

SAMPLE = 1000  # sentence pairs
MOST_EQUAL = 0.5  # share of pairs with equal sides, above which both sides are one text
MOST_FOREIGN = 0.8  # share of passages in another language, above which the name is wrong
LEAST_PASSAGES = 10  # fewer tell nothing
CHARACTERS = 200  # of a passage; identification of a single short sentence is unsure


def check_sample(files: CorpusFiles) -> None:
    """Compare the first sentence pairs of a data set with its name; a job.

    Raises `UserError` if both sides are the same text, or one is in another language.
    """
    blocks = (item for item in read(files, SAMPLE) if isinstance(item, Block))
    block = next(blocks, None)
    if block is None:
        return
    pairs = list(zip(block.source, block.target, strict=True))
    equal = sum(source == target for source, target in pairs)
    if equal > MOST_EQUAL * len(pairs):
        raise _wrong(files, f"both sides are equal in {equal} of its first {len(pairs)} pairs")
    for lang, lines in ((files.source_lang, block.source), (files.target_lang, block.target)):
        if (found := foreign_language(lines, lang)) is not None:
            raise _wrong(files, f"its text in {lang} is in {found}")


def _wrong(files: CorpusFiles, finding: str) -> UserError:
    index, name = files.data_set.split(" ", 1)
    return UserError(
        f"`{name}` is not what {index} says: {finding}; take it out of the recipe, or give its "
        "`files` and `pair` yourself."
    )


def foreign_language(lines: Sequence[str], lang: str) -> str | None:
    """Return the language that most of a text is in, if it is another one than `lang`.

    None if the text is short, or the model of py3langid does not know `lang`. Near relatives
    count as the same language.
    """
    model = _model()
    if all(is_distant(label, lang) for label in model.labels):
        return None
    passages = _passages(lines)
    if len(passages) < LEAST_PASSAGES:
        return None
    counts = Counter(model.classify(passage)[0] for passage in passages)
    foreign = Counter({label: count for label, count in counts.items() if is_distant(label, lang)})
    if foreign.total() <= MOST_FOREIGN * len(passages):
        return None
    return str(foreign.most_common(1)[0][0])


def _passages(lines: Sequence[str]) -> list[str]:
    """Return consecutive lines joined to passages of some length."""
    passages: list[str] = []
    passage = ""
    for line in lines:
        passage = f"{passage} {line}"
        if len(passage) >= CHARACTERS:
            passages.append(passage)
            passage = ""
    return passages


@cache
def _model() -> Any:
    """Return the model for identification that py3langid brings."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ModuleNotFoundError as error:
        raise UserError(
            f"Data sets of an index need the Python package {error.name}: run `pip install "
            "'fairseq_mtmoe[corpora]'`."
        ) from error
    return LanguageIdentifier.from_model_file(MODEL_FILE)
