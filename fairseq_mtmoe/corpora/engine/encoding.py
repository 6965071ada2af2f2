"""The third stage: train a vocabulary or take a given one, and encode every block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from fairseq_mtmoe.core.digest import digest_of_file
from fairseq_mtmoe.core.files import read_bytes, read_text
from fairseq_mtmoe.corpora.binarize import EOS, SPECIAL, UNKNOWN, id_type, write_dictionary
from fairseq_mtmoe.corpora.engine.state import (
    SIDES,
    CorpusState,
    Place,
    kept_in,
    places_of,
    training_by_pair,
)
from fairseq_mtmoe.corpora.engine.work import hash_of, lines_of, load, save
from fairseq_mtmoe.corpora.engine.workers import Tools
from fairseq_mtmoe.corpora.recipes.recipe import SOURCE_FILES, Recipe
from fairseq_mtmoe.corpora.recipes.schema import SIZE_RULE
from fairseq_mtmoe.corpora.vocabulary.pieces import load as load_pieces
from fairseq_mtmoe.corpora.vocabulary.pieces import with_tag
from fairseq_mtmoe.corpora.vocabulary.training import sample_lines, train
from fairseq_mtmoe.translation.data.file_names import TAG

MODEL = "spm.model"
IDS = "ids.npy"
DICTIONARY = "dict.txt"
# Begins the names of such files of sources, if they have a vocabulary of their own.
SOURCE = "source."

Indices = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary: SentencePiece models, dictionaries, and the id of each piece."""

    folder: Path
    symbols: int  # of the larger dictionary, with fairseq's four
    digest: str  # of all files
    # Languages that have a vocabulary of their own, if sources have one.
    source_langs: tuple[str, ...] = ()

    def model(self, prefix: str = "") -> Path:
        """Return the path of the SentencePiece model; `prefix` is `SOURCE` or empty."""
        return self.folder / f"{prefix}{MODEL}"

    def dictionary(self, prefix: str = "") -> Path:
        """Return the path of the dictionary."""
        return self.folder / f"{prefix}{DICTIONARY}"

    def prefix(self, lang: str) -> str:
        """Return what the names of a language's vocabulary files begin with."""
        return SOURCE if lang in self.source_langs else ""


Encoded = tuple[list[CorpusState], Vocabulary]  # all corpora with their ids, and the vocabulary


def encode(
    tools: Tools,
    corpora: list[CorpusState],
    recipe: Recipe,
    given_files: Mapping[str, Path],
    folder: Path,
) -> Encoded:
    """Return the corpora with files of ids in `folder`, and the vocabulary.

    `given_files` are those of a given vocabulary.
    """
    vocabulary = make_vocabulary(tools, corpora, recipe, given_files, folder)
    jobs, owners = [], []
    for number, corpus in enumerate(corpora):
        prefixes = list(map(vocabulary.prefix, corpus.files.pair.split("-")))
        for block, place in enumerate(corpus.places):
            out = folder / f"{number:05d}" / f"{block:06d}.npz"
            job = partial(encode_block, place, vocabulary, prefixes, corpus.files.tagged, out)
            jobs.append((job, place.size))
            corpus.ids.append(out)
            owners.append(corpus)
    for corpus, counts in zip(owners, tools.run("Encoding", jobs), strict=True):
        for side in SIDES:
            corpus.tokens.setdefault(side, Counter()).update(counts[side])
    return corpora, vocabulary


def make_vocabulary(
    tools: Tools,
    corpora: Sequence[CorpusState],
    recipe: Recipe,
    given_files: Mapping[str, Path],
    folder: Path,
) -> Vocabulary:
    """Train a model on text drawn by temperature, or take the given one."""
    is_tagged = recipe.has_synthetic
    model = read_bytes(given_files["model"]) if given_files else _train(tools, corpora, recipe)
    symbols = _write_vocabulary(folder, "", model, given_files.get("dictionary"), is_tagged)
    source_langs: list[str] = []
    if SOURCE_FILES[0] in given_files:
        model = read_bytes(given_files[SOURCE_FILES[0]])
        others = _write_vocabulary(folder, SOURCE, model, given_files[SOURCE_FILES[1]], is_tagged)
        symbols = max(symbols, others)
        source_langs = sorted(recipe.source_languages())
    if recipe.vocabulary.size is None and not given_files:
        tools.progress.note(f"Vocabulary: {symbols:,} pieces by default: {SIZE_RULE}")
    digest = hash_of(list(map(digest_of_file, sorted(folder.iterdir()))))
    return Vocabulary(folder, symbols, digest, tuple(source_langs))


def _train(tools: Tools, corpora: Sequence[CorpusState], recipe: Recipe) -> bytes:
    """Return a trained model."""
    by_pair = training_by_pair(corpora)
    sizes = Counter[str]()  # training sentences of each language, in all pairs together
    for pair, in_pair in by_pair.items():
        sizes.update(dict.fromkeys(pair.split("-"), kept_in(in_pair)))
    indices = sample_lines(sizes, recipe.vocabulary.temperature, recipe.seed)
    jobs = _gather_jobs(by_pair, indices)
    lines_by_job = tools.run("Drawing text for the vocabulary", jobs, "sentences")
    text = list(chain.from_iterable(lines_by_job))
    with tools.progress.call("Making the vocabulary"):
        return train(text, recipe.vocabulary, sizes.total())


def _gather_jobs(
    by_pair: Mapping[str, Sequence[CorpusState]], indices: Indices
) -> list[tuple[partial[list[str]], int]]:
    """Return jobs for sentences with their number, by indices in each language's text."""
    jobs = []
    starts = dict.fromkeys(indices, 0)
    for pair, in_pair in sorted(by_pair.items()):
        for place in places_of(in_pair):
            kept = place.rows()
            for side, lang in zip(SIDES, pair.split("-"), strict=True):
                if lang not in indices:  # a language without sentences
                    continue
                first, last = np.searchsorted(
                    indices[lang], [starts[lang], starts[lang] + len(kept)]
                )
                if first < last:
                    rows = kept[indices[lang][first:last] - starts[lang]]
                    jobs.append((partial(gather_block, place.block, side, rows), len(rows)))
                starts[lang] += len(kept)
    return jobs


def gather_block(block: Path, side: str, rows: NDArray[np.int64]) -> list[str]:
    """Return some lines of a block; a job."""
    return lines_of(load(block, side)[side], rows)


def _write_vocabulary(
    folder: Path, prefix: str, model: bytes, dictionary: Path | None, is_tagged: bool
) -> int:
    """Write the files of a vocabulary; return the number of its symbols."""
    pieces = load_pieces(model, dictionary)
    if is_tagged:
        pieces = with_tag(pieces)
    (folder / f"{prefix}{MODEL}").write_bytes(model)
    np.save(folder / f"{prefix}{IDS}", pieces.ids)
    write_dictionary(folder / f"{prefix}{DICTIONARY}", pieces.symbols)
    return len(SPECIAL) + len(pieces.symbols)


@dataclass(frozen=True)
class _Encoder:
    """A vocabulary in memory, for one side."""

    model: sentencepiece.SentencePieceProcessor
    ids: NDArray[np.int32]  # the dictionary's id of each piece
    # Ids of symbols that are no pieces, as characters of pretrained vocabularies can be.
    others: Mapping[str, int]
    tag: int | None


@lru_cache(2)
def _load_encoder(vocabulary: Vocabulary, prefix: str) -> _Encoder:
    model = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary.model(prefix)))
    ids = np.load(vocabulary.folder / f"{prefix}{IDS}")
    lines = read_text(vocabulary.dictionary(prefix)).removesuffix("\n").split("\n")
    symbols = {line.rpartition(" ")[0]: index for index, line in enumerate(lines, len(SPECIAL))}
    tag = symbols.pop(TAG, None)
    pieces = set(map(model.id_to_piece, range(model.get_piece_size())))
    others = {symbol: symbols[symbol] for symbol in symbols.keys() - pieces}
    return _Encoder(model, ids, others, tag)


def encode_block(
    place: Place, vocabulary: Vocabulary, prefixes: Sequence[str], tagged: str, out: Path
) -> dict[str, Counter[str]]:
    """Write the ids and lengths of a block's kept sentences; return counts by side.

    `prefixes` are those of each side's vocabulary files. The side `tagged` begins with `TAG`.
    """
    texts = load(place.block, *SIDES)
    rows = place.rows()
    arrays: dict[str, NDArray[Any]] = {}
    counts: dict[str, Counter[str]] = {}
    for side, prefix in zip(SIDES, prefixes, strict=True):
        encoder = _load_encoder(vocabulary, prefix)
        lines = lines_of(texts[side], rows)
        ids, lengths = encode_lines(lines, encoder.model, encoder.ids, encoder.others)
        counts[side] = Counter(
            tokens=len(ids) - len(lengths),
            unknown=int((ids == UNKNOWN).sum()),
            words=len(" ".join(lines).split()),
            characters=sum(map(len, lines)),
        )
        if side == tagged:
            assert encoder.tag is not None, "the dictionary lacks the tag"
            ids = np.insert(ids, np.cumsum(lengths) - lengths, encoder.tag)
            lengths = lengths + 1
        arrays[f"{side}_ids"] = ids.astype(id_type(vocabulary.symbols))
        arrays[f"{side}_lengths"] = lengths
    save(out, **arrays)
    return counts


def encode_lines(
    lines: Sequence[str], model: sentencepiece.SentencePieceProcessor, table: NDArray[np.int32],
    others: Mapping[str, int],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:  # fmt: skip
    """Return the ids of all sentences with their ends, and their lengths.

    `table` has the id of each piece, and `others` those of texts that are unknown to the model.
    """
    pieces: list[list[int]] = model.encode(list(lines), num_threads=1)
    lengths = np.fromiter(map(len, pieces), np.int32, len(pieces))
    flat = np.fromiter(chain.from_iterable(pieces), np.int32, int(lengths.sum()))
    ids = np.full(len(flat) + len(lengths), EOS, np.int32)
    is_piece = np.ones(len(ids), np.bool_)
    is_piece[np.cumsum(lengths + 1, dtype=np.int64) - 1] = False
    ids[is_piece] = table[flat]
    ends = np.cumsum(lengths + 1)
    if not others:
        return ids, lengths + 1
    unknown = np.flatnonzero(ids == UNKNOWN)
    for line in np.unique(np.searchsorted(ends, unknown, side="right")).tolist():
        names = model.encode(lines[line], out_type=str)
        for at, name in enumerate(names, ends[line] - len(names) - 1):
            if ids[at] == UNKNOWN:
                ids[at] = others.get(name, UNKNOWN)
    return ids, lengths + 1
