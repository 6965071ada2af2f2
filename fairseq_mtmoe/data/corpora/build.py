"""Text that is split already, as it is, to a data directory: `prepare text`, and `prepare catalogs` from its split on.

The same parts as those of `prepare corpora` (`engine`), without its filters: the text is somebody's choice already.
Sentences are normalised, and training pairs with an empty side are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.cleaning import CHANGES, are_among
from fairseq_mtmoe.data.corpora.data_dir import content_hash
from fairseq_mtmoe.data.corpora.engine.assembling import TRAIN, Assembly, binarize
from fairseq_mtmoe.data.corpora.engine.encoding import ForVocabulary
from fairseq_mtmoe.data.corpora.engine.progress import Shown
from fairseq_mtmoe.data.corpora.engine.reading import CleanedCorpus, RawCorpus, Reading, summaries
from fairseq_mtmoe.data.corpora.engine.selecting import Selection
from fairseq_mtmoe.data.corpora.engine.store import Saved, WorkFolder
from fairseq_mtmoe.data.corpora.engine.workers import Workers
from fairseq_mtmoe.data.corpora.messages import message_key
from fairseq_mtmoe.data.corpora.recipes import Corpus, Filters, HeldOut, Recipe, Shards, Spelling, Vocabulary
from fairseq_mtmoe.data.corpora.recipes.schema import LARGEST_SIZE, LEAST_COVERAGE
from fairseq_mtmoe.data.corpora.vocabulary.given import GivenVocabulary
from fairseq_mtmoe.data.corpora.vocabulary.training import OPTIONS
from fairseq_mtmoe.errors import UserError, raise_invalid


@dataclass(frozen=True)
class BuildOptions:
    """How to build a data directory; every field changes the bytes that are written."""

    vocab_size: int = 8000
    character_coverage: float = 0.9995
    temperature: float = 5.0
    seed: int = 1
    shards: int = 1

    def __post_init__(self) -> None:
        if not 8 <= self.vocab_size <= LARGEST_SIZE:
            raise_invalid("--vocab-size", f"from 8 to {LARGEST_SIZE:,}", self.vocab_size)
        if not LEAST_COVERAGE <= self.character_coverage <= 1:
            raise_invalid("--character-coverage", f"from {LEAST_COVERAGE} to 1", self.character_coverage)
        if not self.temperature > 0:
            raise_invalid("--temperature", "over 0", self.temperature)
        if self.shards < 1:
            raise_invalid("--shards", "at least 1", self.shards)


@dataclass(frozen=True)
class Tools:
    """What a directory is made with: who does it, where what is done is kept, and what shows how far it is."""

    work: WorkFolder
    workers: Workers
    shown: Shown


@dataclass(frozen=True)
class Overlap:
    """Validation and test sources of one pair that occur in training data."""

    sources: int = 0
    of_pairs: dict[str, int] = field(default_factory=dict)  # whose training data: the pair, and how many of the sources


@dataclass(frozen=True)
class Built:
    """What a data directory was made of.

    Attributes:
        dropped: training pairs that were left out, by language pair and reason (`messages.DROP_REASONS`).
        changes: what was normalised of each file, by its name (`cleaning.CHANGES`).
        overlaps: validation and test sources that are in training data, by language pair.
    """

    assembly: Assembly
    dropped: dict[str, dict[str, int]]
    changes: dict[str, dict[str, int]]
    overlaps: dict[str, Overlap]


class _AsNamed(Recipe):
    """A recipe whose data directory spells codes as the files' names do."""

    def data_code(self, lang: str) -> str:
        return lang

    def data_pair(self, pair: str) -> str:
        return pair


def build(
    folder: Path,
    corpora: Sequence[RawCorpus],
    tiers: Mapping[str, Sequence[str]],
    options: BuildOptions,
    tools: Tools,
    given: GivenVocabulary | None = None,
) -> Built:
    """Fill the empty directory `folder` with a data directory, or with `shard0` … if `options.shards` is over 1.

    Args:
        corpora: training, validation and test text of each language pair, one corpus for each.
        tiers: language pairs, or languages, by tier; those that are not named go by their size.
        given: the vocabulary, in the place of one that is trained on the text.

    Raises:
        UserError: a file is no text, two do not fit together, or the text is too small for the options.
    """
    cleaned = Reading(tools.work, None, [], "stop").clean(corpora, tools.workers, tools.shown, "Reading text")
    _check_sizes(cleaned, options.shards)
    trained = {corpus.raw.pair: corpus for corpus in cleaned if corpus.raw.role.name == TRAIN}
    evaluated: dict[str, dict[str, CleanedCorpus]] = {pair: {} for pair in trained}
    for corpus in cleaned:
        if corpus.raw.role.name != TRAIN:
            evaluated[corpus.raw.pair][corpus.raw.role.name] = corpus
    recipe, vocabulary = _recipe(corpora, tiers, options), ForVocabulary(names=OPTIONS)
    if given is not None:
        digests = [content_hash(path) for path in given.files.values()]
        recipe, vocabulary = given.of_recipe(recipe), ForVocabulary(given.files, digests)
    assembly = binarize(
        folder,
        tools.work,
        recipe,
        vocabulary,
        {pair: [Selection(corpus)] for pair, corpus in trained.items()},
        {pair: {split: corpus.blocks for split, corpus in of.items()} for pair, of in evaluated.items()},
        tools.workers,
        tools.shown,
    )
    return Built(
        assembly,
        {pair: _dropped(corpus.result) for pair, corpus in trained.items()},
        {path.name: changes for corpus in cleaned for path, changes in _changes(corpus)},
        sources_in_training({pair: list(of.values()) for pair, of in evaluated.items()}, trained),
    )


def _dropped(result: Mapping[str, Any]) -> dict[str, int]:
    return {"empty": result["dropped"].get("empty", 0), "unequal": result["bad"].get("unequal", 0)}


def _recipe(corpora: Sequence[RawCorpus], tiers: Mapping[str, Sequence[str]], options: BuildOptions) -> Recipe:
    entries = [
        Corpus(name=one.files.name, pair=one.pair, role=one.role, files=[path.name for path in one.files.paths])
        for one in corpora
    ]
    return _AsNamed(
        name="text",
        languages=Spelling.plain,
        directions=[],
        corpora=entries,
        held_out=HeldOut(),
        filters=Filters(),  # nothing asks for them
        vocabulary=Vocabulary(options.vocab_size, options.temperature, options.character_coverage),
        shards=Shards(pairs=1, most=options.shards),
        tiers={tier: list(names) for tier, names in tiers.items()},
        seed=options.seed,
        path=corpora[0].files.paths[0].parent,
    )


def _check_sizes(corpora: Sequence[CleanedCorpus], shards: int) -> None:
    for corpus in corpora:
        split, size = corpus.raw.role.name, sum(corpus.sizes)
        if not size and corpus.result["read"]:
            one = corpus.raw.files.paths[0]
            raise UserError(f"`{one}` and its translation must have a sentence, but have none.")
        needed = shards if split == TRAIN else 1
        if size < needed:
            raise UserError(f"{corpus.raw.pair} must have at least {needed} {split} pairs, but has {size}.")


def _changes(corpus: CleanedCorpus) -> list[tuple[Path, dict[str, int]]]:
    """What was changed of each of its files."""
    sums = [dict.fromkeys(CHANGES, 0) for _ in corpus.raw.files.paths]
    for summary in summaries(corpus):
        for total, found in zip(sums, summary["changes"], strict=True):
            for name in CHANGES:
                total[name] += found[name]
    return list(zip(corpus.raw.files.paths, sums, strict=True))


# ---- validation and test sentences that are in training data, where nobody takes them out ----


def sources_in_training(
    evaluated: Mapping[str, Sequence[CleanedCorpus]], trained: Mapping[str, CleanedCorpus]
) -> dict[str, Overlap]:
    """By language pair, how many validation and test sources occur in the training data of which pairs.

    Sources are compared by `message_key`, and only with training data that has the same source language. Training text
    is looked at where its keys on disk say so alone.
    """
    sources = {pair: [key for corpus in corpora for key in _messages(corpus)] for pair, corpora in evaluated.items()}
    found: dict[str, dict[str, set[str]]] = {}  # by source language and pair: the messages that its training data has
    for lang in {_source(pair) for pair in evaluated}:
        corpora = [corpus for pair, of_pair in evaluated.items() if _source(pair) == lang for corpus in of_pair]
        keys = np.unique(np.concatenate([np.zeros(0, np.uint64), *map(_keys_of, corpora)]))
        messages = {key for pair in evaluated if _source(pair) == lang for key in sources[pair]}
        of_lang = {pair: corpus for pair, corpus in trained.items() if _source(pair) == lang}
        found[lang] = {pair: messages & _messages_with(corpus, keys) for pair, corpus in of_lang.items()}
    return {pair: _overlap(messages, found[_source(pair)]) for pair, messages in sources.items()}


def _source(pair: str) -> str:
    return pair.split("-")[0]


def _overlap(messages: Sequence[str], trained: Mapping[str, set[str]]) -> Overlap:
    holders = [[pair for pair, of_pair in trained.items() if message in of_pair] for message in messages]
    return Overlap(sum(map(bool, holders)), dict(sorted(Counter(pair for some in holders for pair in some).items())))


def _messages(corpus: CleanedCorpus) -> list[str]:
    found = []
    for path in corpus.blocks:
        with Saved(path) as saved:
            found += [message_key(line) for line in saved.lines("source")]
    return found


def _keys_of(corpus: CleanedCorpus) -> NDArray[np.uint64]:
    found = [np.zeros(0, np.uint64)]
    for path in corpus.blocks:
        with Saved(path) as saved:
            found.append(saved["source_keys"])
    return np.concatenate(found)


def _messages_with(corpus: CleanedCorpus, keys: NDArray[np.uint64]) -> set[str]:
    """The messages of sources that have one of these keys, which are sorted."""
    found: set[str] = set()
    for path in corpus.blocks:
        with Saved(path) as saved:
            rows = np.flatnonzero(are_among(saved["source_keys"], keys))
            found.update(map(message_key, saved.some_lines("source", rows)) if len(rows) else ())
    return found
