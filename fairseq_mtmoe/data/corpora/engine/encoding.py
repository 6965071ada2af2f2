"""The stages that know pieces: text is drawn, a vocabulary is trained of it or given, and every block becomes ids."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.binarize import EOS, SPECIAL, UNKNOWN, id_type, write_dictionary
from fairseq_mtmoe.data.corpora.engine.selecting import SIDES, Mask, Selections
from fairseq_mtmoe.data.corpora.engine.store import Saved, Stage, is_saved, save
from fairseq_mtmoe.data.corpora.engine.workers import Tools
from fairseq_mtmoe.data.corpora.recipes import Recipe
from fairseq_mtmoe.data.corpora.vocabulary import Pieces, count_characters, known_characters, load, sample_lines, train
from fairseq_mtmoe.data.corpora.vocabulary.training import RECIPE_NAMES, SIZE_RULE
from fairseq_mtmoe.io.files import read_bytes, replacing

TRAINED_BY = ("size", "temperature", "character_coverage")
"""What of a recipe's vocabulary decides about a trained model."""

MODEL, IDS = "spm.model", "ids.npy"

Text = Sequence[tuple[Path, Mask | None]]
"""Files of text with the rows that are wanted of each: all, where there is no mask."""

# ---- text for the vocabulary ----


class _GatherJob(NamedTuple):
    lang: str
    number: int
    text: Path
    side: str
    rows: NDArray[np.int64]


def _gather_text(tools: Tools, selections: Selections, places: Mapping[str, NDArray[np.int64]]) -> list[str]:
    """Sentences of each language, by their sorted places among all of its training sentences."""
    found: dict[tuple[str, int], list[str]] = {}
    with tools.shown.step("Drawing text for the vocabulary", sum(map(len, places.values())), "sentences") as step:
        for place, lines in tools.workers.map_blocks(gather_block, _gather_jobs(selections, places)):
            found[place] = lines
            step.advance(len(lines))
    return [line for place in sorted(found) for line in found[place]]


def _gather_jobs(selections: Selections, places: Mapping[str, NDArray[np.int64]]) -> Iterator[_GatherJob]:
    starts, number = dict.fromkeys(places, 0), itertools.count()
    for pair, of_pair in sorted(selections.items()):
        for path, mask in itertools.chain.from_iterable(selection.blocks for selection in of_pair):
            kept = np.flatnonzero(mask)
            for side, lang in zip(SIDES, pair.split("-"), strict=True):
                if lang not in places:  # which has no sentence
                    continue
                first, last = np.searchsorted(places[lang], [starts[lang], starts[lang] + len(kept)])
                if first < last:
                    yield _GatherJob(lang, next(number), path, side, kept[places[lang][first:last] - starts[lang]])
                starts[lang] += len(kept)


def gather_block(job: _GatherJob) -> tuple[tuple[str, int], list[str]]:
    """The job's language and number, and the sentences that it asks for."""
    with Saved(job.text) as saved:
        return (job.lang, job.number), saved.some_lines(job.side, job.rows)


# ---- the vocabulary ----


@dataclass(frozen=True)
class ForVocabulary:
    """What a vocabulary is made of besides text."""

    given: Mapping[str, Path] = field(default_factory=dict)  # the recipe's `model` and `dictionary`, where it has them
    digests: Sequence[str] = ()  # of these
    names: tuple[str, str] = RECIPE_NAMES  # what a user calls size and character coverage


@dataclass(frozen=True)
class Vocabulary:
    """Where the vocabulary is: a SentencePiece model, a dictionary for all languages, and its id for each piece."""

    stage: Stage
    symbols: int  # of the dictionary, with fairseq's four
    wanted: int  # how many there were to be

    @property
    def model(self) -> Path:
        return self.stage.folder / MODEL

    @property
    def dictionary(self) -> Path:
        return self.stage.folder / "dict.txt"


def make_vocabulary(tools: Tools, recipe: Recipe, made_of: ForVocabulary, selections: Selections) -> Vocabulary:
    """Train a model on text that is drawn by temperature, or take the given one.

    Text that is too small for the vocabulary, and a given file that is none of its kind, are `UserError`s.
    """
    given = made_of.given
    if given:
        stage = tools.work.stage("vocabulary", given=list(made_of.digests))
    else:
        keys = {pair: [one.key for one in of_pair] for pair, of_pair in sorted(selections.items())}
        settings = {name: getattr(recipe.vocabulary, name) for name in TRAINED_BY}
        about = {"settings": settings, "seed": recipe.seed, "sentencepiece": version("sentencepiece")}
        stage = tools.work.stage("vocabulary", text=keys, **about)
    if stage.result() is None:
        sizes = {} if given else _text_sizes(selections)
        places = sample_lines(sizes, recipe.vocabulary.temperature, recipe.seed)
        text = _gather_text(tools, selections, places) if places else []
        with tools.shown.step("Making the vocabulary"):
            if given:
                model, wanted = read_bytes(given["model"]), 0
            else:
                model, wanted = train(text, recipe.vocabulary, sum(sizes.values()), made_of.names)
            symbols = _write_vocabulary(stage, model, load(model, given.get("dictionary")), wanted)
        if recipe.vocabulary.size is None and not given:
            tools.shown.note(f"Vocabulary: {symbols:,} pieces, as nothing says how many: {SIZE_RULE}")
    return Vocabulary(stage, **(stage.result() or {}))


def _text_sizes(selections: Selections) -> dict[str, int]:
    """How many training sentences each language has, in all pairs together."""
    sizes: dict[str, int] = {}
    for pair, of_pair in selections.items():
        for lang in pair.split("-"):
            sizes[lang] = sizes.get(lang, 0) + sum(selection.summary()["kept"] for selection in of_pair)
    return dict(sorted(sizes.items()))


def _write_vocabulary(stage: Stage, model: bytes, pieces: Pieces, wanted: int) -> int:
    with replacing(stage.folder / MODEL) as path:
        path.write_bytes(model)
    with replacing(stage.folder / IDS) as path:
        np.save(path, pieces.ids)
    with replacing(stage.folder / "dict.txt") as path:
        write_dictionary(path, pieces.symbols)
    symbols = len(SPECIAL) + len(pieces.symbols)
    stage.finish({"symbols": symbols, "wanted": wanted})
    return symbols


# ---- ids ----


@dataclass(frozen=True)
class _EncodeJob:
    text: Path
    mask: Mask | None
    vocabulary: Path  # the folder that it is in
    out: Path


def encode(tools: Tools, texts: Sequence[Text], vocabulary: Vocabulary) -> list[list[Path]]:
    """Files with the ids of each text, one for each of its own; what an earlier run made of the same rows stays."""
    made_from = {"model": vocabulary.stage.key, "sentencepiece": version("sentencepiece")}
    folders = {path.parent.name for text in texts for path, _ in text}
    stages = {folder: tools.work.stage("ids", text=folder, **made_from) for folder in sorted(folders)}
    encoded, jobs = [], {}
    for text in texts:
        encoded.append([_place(stages[path.parent.name], path, mask) for path, mask in text])
        for (path, mask), out in zip(text, encoded[-1], strict=True):
            jobs[out] = _EncodeJob(path, mask, vocabulary.stage.folder, out)
    tools.work.keep_alone(jobs)
    left = [job for job in jobs.values() if not is_saved(job.out)]
    tools.do("Encoding", encode_block, left, sum(map(_num_pairs, left)))
    return encoded


def _place(stage: Stage, path: Path, mask: Mask | None) -> Path:
    """Where the ids of a block are: which rows are wanted is in the name, so that a block of which no other rows are
    wanted than before is not encoded again."""
    rows = "all" if mask is None or mask.all() else hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()[:16]
    return stage.folder / f"{path.stem}-{rows}.npz"


def _num_pairs(job: _EncodeJob) -> int:
    if job.mask is not None:
        return int(job.mask.sum())
    with Saved(job.text) as saved:
        return int(saved["source_count"])


@lru_cache(1)
def _load_model(folder: Path) -> tuple[sentencepiece.SentencePieceProcessor, NDArray[np.int32], Mask]:
    """The model, the dictionary's id for each of its pieces, and which characters they have."""
    model, table = (
        sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model")),
        np.load(folder / "ids.npy"),
    )
    return model, table, known_characters(model, table)


def encode_block(job: _EncodeJob) -> int:
    """Write the ids of a block's sentences, each with the end of sentence, and their lengths; how many pairs."""
    model, table, known = _load_model(job.vocabulary)
    arrays: dict[str, NDArray[Any]] = {}
    summary: dict[str, Any] = {}
    with Saved(job.text) as saved:
        for side in SIDES:
            lines = saved.lines(side)
            if job.mask is not None:
                lines = list(itertools.compress(lines, job.mask.tolist()))
            ids, lengths = encode_lines(lines, model, table)
            dtype = id_type(int(table.max()) + 1)
            arrays |= {f"{side}_ids": ids.astype(dtype), f"{side}_lengths": lengths}
            summary[side] = {
                "tokens": len(ids) - len(lengths),
                "unknown": int((ids == UNKNOWN).sum()),
                "words": sum(line.count(" ") + 1 for line in lines if line),
                "characters": sum(map(len, lines)),
                **count_characters(lines, known),
            }
    summary["pairs"] = len(lengths)
    save(job.out, summary, **arrays)
    return len(lengths)


def encode_lines(
    lines: Sequence[str], model: sentencepiece.SentencePieceProcessor, table: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The dictionary's ids of all sentences one behind the other, each with the end of sentence, and their lengths;
    `table` has the dictionary's id for each piece of the model."""
    pieces: list[list[int]] = model.encode(list(lines), num_threads=1)
    lengths = np.fromiter(map(len, pieces), np.int32, len(pieces))
    flat = np.fromiter(itertools.chain.from_iterable(pieces), np.int32, int(lengths.sum()))
    ids = np.full(len(flat) + len(lengths), EOS, np.int32)
    is_piece = np.ones(len(ids), np.bool_)
    is_piece[np.cumsum(lengths + 1, dtype=np.int64) - 1] = False
    ids[is_piece] = table[flat]
    return ids, lengths + 1
