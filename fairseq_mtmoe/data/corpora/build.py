"""Data directories from text that is already split: `prepare text`, and the second half of `prepare catalogs`."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, product
from pathlib import Path

import numpy as np

from fairseq_mtmoe.data.corpora.blocks import CorpusFiles
from fairseq_mtmoe.data.corpora.catalogs import message_key
from fairseq_mtmoe.data.corpora.cleaning.cleaner import CHANGES
from fairseq_mtmoe.data.corpora.cleaning.keys import Keys, are_among
from fairseq_mtmoe.data.corpora.engine.assembling import TRAIN, binarize
from fairseq_mtmoe.data.corpora.engine.jobs import RawCorpus
from fairseq_mtmoe.data.corpora.engine.reading import CleanedCorpus, Rules, clean
from fairseq_mtmoe.data.corpora.engine.selecting import SIDES, Selection, joined_keys
from fairseq_mtmoe.data.corpora.engine.store import Saved, summary_of
from fairseq_mtmoe.data.corpora.engine.workers import Tools
from fairseq_mtmoe.data.corpora.recipes.recipe import Recipe
from fairseq_mtmoe.data.corpora.recipes.schema import BuildOptions, Corpus, Role, Shards, Vocabulary
from fairseq_mtmoe.data.corpora.report import SPLITS, Report, pair_figures
from fairseq_mtmoe.data.corpora.vocabulary.pieces import GivenVocabulary
from fairseq_mtmoe.data.corpora.vocabulary.training import OPTIONS
from fairseq_mtmoe.data.translation.file_names import read_side_name, side_name
from fairseq_mtmoe.data.translation.tiers import read_tiers
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import regular_file

_CHUNK = 1 << 20


def find_text_files(raw: Path) -> dict[str, dict[str, tuple[Path, Path]]]:
    """Return the (source, target) files of each split of each language pair in a folder (UserError: one is missing)."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(raw.iterdir()):
        side = read_side_name(path.name)
        if side and side.split in SPLITS and side.lang in (side.source, side.target):
            found[side.pair].add(path.name)
    if not found:
        raise UserError(f"`{raw}` must hold text files such as `train.en-de.en` and `train.en-de.de`, but has none.")
    files: dict[str, dict[str, tuple[Path, Path]]] = {pair: {} for pair in found}
    for pair, split in product(found, SPLITS):
        source, target = (raw / side_name(split, pair, lang) for lang in pair.split("-"))
        for path in (source, target):
            if path.name not in found[pair]:
                raise UserError(f"`{path}` is missing: {pair} needs both sides of train, valid and test.")
        files[pair][split] = regular_file(source, "a text file"), regular_file(target, "a text file")
    return files


def corpora_of(
    files: Mapping[str, Mapping[str, tuple[Path, Path]]], hashes: Mapping[Path, str], allow_unequal: bool = False
) -> list[RawCorpus]:
    """Return the files of `find_text_files` as corpora, with the hashes of their content."""
    corpora = []
    for pair, of_pair in files.items():
        source, target = pair.split("-")
        for split, paths in of_pair.items():
            name, is_evaluation = f"{split}.{pair}", split != TRAIN
            corpus = CorpusFiles(name, paths, source, target, "text", {}, is_evaluation, allow_unequal)
            corpora.append(RawCorpus(corpus, pair, Role[split], tuple(hashes[path] for path in paths)))
    return corpora


def has_lone_carriage_return(path: Path) -> bool:
    """Return whether a file has a carriage return that is not before a line feed."""
    with open(regular_file(path, "a text file"), "rb") as file:
        rest = b""
        while data := file.read(_CHUNK):
            data = rest + data
            rest = b"\r" if data.endswith(b"\r") else b""  # a line feed may follow
            if re.search(rb"\r[^\n]", data):
                return True
    return bool(rest)


def read_ranked_tiers(path: Path) -> dict[str, list[str]]:
    """Return the pairs or languages of each tier in a file; keys may be `T1-high`, …; `tiny` counts as `low`."""
    return read_tiers(path, lambda key: key.split("-")[-1].lower().replace("tiny", "low"))


def build(
    folder: Path,
    corpora: Sequence[RawCorpus],
    tiers: Mapping[str, Sequence[str]],
    options: BuildOptions,
    tools: Tools,
    given: GivenVocabulary | None = None,
    dropped: Mapping[str, Mapping[str, int]] | None = None,
) -> Report:
    """Fill the empty directory `folder`, with `shard0`, … if there are several; return `pairs`, `files` for a report.

    `corpora` has one for each split and language pair; `tiers` names pairs or languages; `given` replaces a trained
    vocabulary; `dropped` has pairs left out earlier, by `catalogs.DROP_REASONS`.
    """
    cleaned = clean(tools, corpora, Rules(None), "Reading text")
    _check_sizes(cleaned, options.shards)
    trained = {corpus.raw.pair: corpus for corpus in cleaned if corpus.raw.role.name == TRAIN}
    evaluated: dict[str, dict[str, CleanedCorpus]] = {pair: {} for pair in trained}
    for corpus in cleaned:
        if corpus.raw.role.name != TRAIN:
            evaluated[corpus.raw.pair][corpus.raw.role.name] = corpus
    recipe, files = _recipe(corpora, tiers, options), {}
    if given is not None:
        recipe, files = given.of_recipe(recipe), given.files
    selections = {pair: [Selection(corpus)] for pair, corpus in trained.items()}
    evaluation = {pair: {split: corpus.blocks for split, corpus in of.items()} for pair, of in evaluated.items()}
    assembly = binarize(folder, tools, recipe, files, OPTIONS, selections, evaluation)
    overlaps = sources_in_training({pair: list(of.values()) for pair, of in evaluated.items()}, trained)
    pairs = {}
    for pair in assembly.pairs:
        result = trained[pair].result
        lost = {"empty": result["dropped"].get("empty", 0), "unequal": result["bad"].get("unequal", 0)}
        pairs[pair] = {
            **pair_figures(assembly, pair),
            "dropped": dict(Counter((dropped or {}).get(pair, {})) + Counter(lost)),
            "evaluation_sources_in_training": overlaps[pair][0],
            "found_in_training_of": overlaps[pair][1],
        }
    return {"pairs": pairs, "files": dict(sorted(file for corpus in cleaned for file in _changes(corpus)))}


def _recipe(corpora: Sequence[RawCorpus], tiers: Mapping[str, Sequence[str]], options: BuildOptions) -> Recipe:
    entries = [
        Corpus(name=one.files.name, pair=one.pair, role=one.role, files=[path.name for path in one.files.paths])
        for one in corpora
    ]
    return Recipe(
        name="text",
        languages=None,
        corpora=entries,
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
            raise UserError(f"`{one}` and its translation must have at least one sentence, but have none.")
        needed = shards if split == TRAIN else 1
        if size < needed:
            raise UserError(f"{corpus.raw.pair} must have at least {needed} {split} pairs, but has {size}.")


def _changes(corpus: CleanedCorpus) -> Iterator[tuple[str, dict[str, int]]]:
    summaries = list(map(summary_of, corpus.blocks))
    for side, path in enumerate(corpus.raw.files.paths):
        yield path.name, {name: sum(summary["changes"][side][name] for summary in summaries) for name in CHANGES}


def sources_in_training(
    evaluated: Mapping[str, Sequence[CleanedCorpus]], trained: Mapping[str, CleanedCorpus]
) -> dict[str, tuple[int, dict[str, int]]]:
    """Return each pair's number of validation and test sources in training data, in total and by training pair.

    They are looked for on the side of their language, be it the source or the target.
    """
    by_source: dict[str, list[str]] = defaultdict(list)
    for pair in evaluated:
        by_source[pair.split("-")[0]].append(pair)
    found = {}
    for lang, pairs in by_source.items():
        keys = joined_keys(_source_keys(path) for pair in pairs for corpus in evaluated[pair] for path in corpus.blocks)
        sides = {pair: SIDES[pair.split("-").index(lang)] for pair in trained if lang in pair.split("-")}
        holders = {pair: set(_messages([trained[pair]], keys, side)) for pair, side in sides.items()}
        for pair in pairs:
            held = [[other for other in sides if message in holders[other]] for message in _messages(evaluated[pair])]
            found[pair] = sum(map(bool, held)), dict(sorted(Counter(chain.from_iterable(held)).items()))
    return found


def _source_keys(path: Path) -> Keys:
    with Saved(path) as saved:
        keys: Keys = saved["source_keys"]
        return keys


def _messages(corpora: Sequence[CleanedCorpus], among: Keys | None = None, side: str = SIDES[0]) -> Iterator[str]:
    """Yield the `message_key` of each text on a side, or only of those with one of these sorted keys."""
    for path in (path for corpus in corpora for path in corpus.blocks):
        with Saved(path) as saved:
            if among is None:
                lines = saved.lines(side)
            else:
                lines = saved.some_lines(side, np.flatnonzero(are_among(saved[f"{side}_keys"], among)))
        yield from map(message_key, lines)
