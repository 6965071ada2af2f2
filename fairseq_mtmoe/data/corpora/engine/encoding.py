"""The stages after cleaning: draw text, train a vocabulary on it or take a given one, encode every block."""

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.binarize import EOS, SPECIAL, UNKNOWN, id_type, write_dictionary
from fairseq_mtmoe.data.corpora.data_dir import content_hash
from fairseq_mtmoe.data.corpora.engine.selecting import SIDES, Mask, Selections
from fairseq_mtmoe.data.corpora.engine.store import Saved, Stage, is_saved, save, summary_of
from fairseq_mtmoe.data.corpora.engine.workers import Tools
from fairseq_mtmoe.data.corpora.recipes.recipe import SOURCE_FILES, Recipe
from fairseq_mtmoe.data.corpora.recipes.schema import SIZE_RULE
from fairseq_mtmoe.data.corpora.vocabulary.pieces import Pieces, count_characters, known_characters, load, with_tag
from fairseq_mtmoe.data.corpora.vocabulary.training import sample_lines, train
from fairseq_mtmoe.data.translation.file_names import TAG
from fairseq_mtmoe.io.files import read_bytes, read_text, replacing

TRAINED_BY = ("size", "temperature", "character_coverage")  # a recipe's settings that determine a trained model
MODEL, IDS, DICTIONARY = "spm.model", "ids.npy", "dict.txt"
SOURCE = "source."  # begins the names of such files of sources, where they have a vocabulary of their own
Kinds = tuple[str, str]  # for each side of a text `SOURCE`, or nothing

Text = Sequence[tuple[Path, Mask | None]]  # files with the rows wanted of each, or all


def _gather_text(tools: Tools, selections: Selections, indices: Mapping[str, NDArray[np.int64]]) -> list[str]:
    """Return sentences by language, given their sorted indices among its training sentences."""
    found: dict[tuple[str, int], list[str]] = {}
    with tools.shown.step("Drawing text for the vocabulary", sum(map(len, indices.values())), "sentences") as step:
        for order, lines in tools.workers.map_blocks(_gather_jobs(selections, indices)):
            found[order] = lines
            step.advance(len(lines))
    return [line for order in sorted(found) for line in found[order]]


def _gather_jobs(
    selections: Selections, indices: Mapping[str, NDArray[np.int64]]
) -> Iterator[partial[tuple[tuple[str, int], list[str]]]]:
    starts, number = dict.fromkeys(indices, 0), itertools.count()
    for pair, of_pair in sorted(selections.items()):
        for path, mask in itertools.chain.from_iterable(selection.blocks for selection in of_pair):
            kept = np.flatnonzero(mask)
            for side, lang in zip(SIDES, pair.split("-"), strict=True):
                if lang not in indices:  # a language without sentences
                    continue
                first, last = np.searchsorted(indices[lang], [starts[lang], starts[lang] + len(kept)])
                if first < last:
                    rows = kept[indices[lang][first:last] - starts[lang]]
                    yield partial(gather_block, (lang, next(number)), path, side, rows)
                starts[lang] += len(kept)


def gather_block(
    order: tuple[str, int], text: Path, side: str, rows: NDArray[np.int64]
) -> tuple[tuple[str, int], list[str]]:
    """Return some lines of a block, with their place in the order; a job."""
    with Saved(text) as saved:
        return order, saved.some_lines(side, rows)


@dataclass(frozen=True)
class Vocabulary:
    """Files of the vocabulary: a SentencePiece model, a dictionary for all languages, and the id of each piece.

    has_sources: it is of targets, and there is another of sources.
    """

    stage: Stage
    symbols: int  # of the larger dictionary, with fairseq's four
    wanted: int  # how many there were to be
    has_sources: bool = False

    def model(self, kind: str = "") -> Path:
        """Return the path of the SentencePiece model."""
        return self.stage.folder / f"{kind}{MODEL}"

    def dictionary(self, kind: str = "") -> Path:
        """Return the path of the dictionary."""
        return self.stage.folder / f"{kind}{DICTIONARY}"


def make_vocabulary(
    tools: Tools, recipe: Recipe, given: Mapping[str, Path], names: tuple[str, str], selections: Selections
) -> Vocabulary:
    """Train a model on text drawn by temperature, or take the `given` one (UserError: text or file is unfit).

    `names` are what the user calls size and character coverage.
    """
    is_tagged = any(one.corpus.raw.is_synthetic for of_pair in selections.values() for one in of_pair)
    tagged = {"tag": TAG} if is_tagged else {}
    if given:
        stage = tools.work.stage("vocabulary", given=list(map(content_hash, given.values())), **tagged)
    else:
        keys = {pair: [one.key for one in of_pair] for pair, of_pair in sorted(selections.items())}
        settings = {name: getattr(recipe.vocabulary, name) for name in TRAINED_BY}
        about = {"settings": settings, "seed": recipe.seed, "sentencepiece": version("sentencepiece")}
        stage = tools.work.stage("vocabulary", text=keys, **about, **tagged)
    if stage.result() is None:
        sizes = Counter[str]()  # training sentences of each language, in all pairs together
        for pair, of_pair in () if given else selections.items():
            kept = sum(selection.summary()["kept"] for selection in of_pair)
            sizes.update(dict.fromkeys(pair.split("-"), kept))
        indices = sample_lines(sizes, recipe.vocabulary.temperature, recipe.seed)
        text = _gather_text(tools, selections, indices) if indices else []
        with tools.shown.step("Making the vocabulary"):
            if given:
                model, wanted = read_bytes(given["model"]), 0
            else:
                model, wanted = train(text, recipe.vocabulary, sizes.total(), names)
            symbols = _write_vocabulary(stage.folder, "", model, load(model, given.get("dictionary")), is_tagged)
            result: dict[str, Any] = {"symbols": symbols, "wanted": wanted}
            if SOURCE_FILES[0] in given:
                model, dictionary = read_bytes(given[SOURCE_FILES[0]]), given[SOURCE_FILES[1]]
                others = _write_vocabulary(stage.folder, SOURCE, model, load(model, dictionary), is_tagged)
                result |= {"symbols": max(symbols, others), "has_sources": True}
            stage.finish(result)
        if recipe.vocabulary.size is None and not given:
            tools.shown.note(f"Vocabulary: {symbols:,} pieces by default: {SIZE_RULE}")
    return Vocabulary(stage, **(stage.result() or {}))


def _write_vocabulary(folder: Path, kind: str, model: bytes, pieces: Pieces, is_tagged: bool) -> int:
    pieces = with_tag(pieces) if is_tagged else pieces
    with replacing(folder / f"{kind}{MODEL}") as path:
        path.write_bytes(model)
    with replacing(folder / f"{kind}{IDS}") as path:
        np.save(path, pieces.ids)
    with replacing(folder / f"{kind}{DICTIONARY}") as path:
        write_dictionary(path, pieces.symbols)
    return len(SPECIAL) + len(pieces.symbols)


def encode(
    tools: Tools, texts: Sequence[Text], vocabulary: Vocabulary, kinds: Sequence[Kinds], tagged: Sequence[str]
) -> list[list[Path]]:
    """Encode texts; return a file of ids for each of their files, kept from an earlier run if the rows are the same.

    `kinds` are the texts', see `Kinds`; of each text the side `tagged`, if it is not empty, begins with `TAG`.
    """
    made_from = {"model": vocabulary.stage.key, "sentencepiece": version("sentencepiece")}
    folders = {path.parent.name for text in texts for path, _ in text}
    stages = {folder: tools.work.stage("ids", text=folder, **made_from) for folder in sorted(folders)}
    encoded: list[list[Path]] = []
    wanted: dict[Path, tuple[Path, Mask | None]] = {}
    forms: dict[Path, tuple[Kinds, str]] = {}
    for text, of_text, side in zip(texts, kinds, tagged, strict=True):
        encoded.append([_block_path(stages[path.parent.name], path, mask, side) for path, mask in text])
        wanted |= dict(zip(encoded[-1], text, strict=True))
        forms |= dict.fromkeys(encoded[-1], (of_text, side))
    tools.work.keep_alone(wanted)
    folder = vocabulary.stage.folder
    left = [(*of, folder, out, *forms[out]) for out, of in wanted.items() if not is_saved(out)]
    sizes = (summary_of(path)["kept"] if mask is None else int(mask.sum()) for path, mask, *_ in left)
    tools.do("Encoding", [partial(encode_block, *of) for of in left], sum(sizes))
    return encoded


def _block_path(stage: Stage, path: Path, mask: Mask | None, tagged: str) -> Path:
    """Return the path for the ids of a block's rows; it depends on the rows, so that they are encoded only once."""
    tag = tagged and f"-{tagged}"
    rows = "all" if mask is None or mask.all() else hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()[:16]
    return stage.folder / f"{path.stem}-{rows}{tag}.npz"


@lru_cache(2)
def _load_model(folder: Path, kind: str) -> tuple[sentencepiece.SentencePieceProcessor, NDArray[np.int32], Mask]:
    """Return the model, the dictionary's id for each of its pieces, and the known characters."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{kind}{MODEL}"))
    table = np.load(folder / f"{kind}{IDS}")
    return model, table, known_characters(model, table)


@lru_cache(2)
def _others(folder: Path, kind: str) -> dict[str, int]:
    """Return the dictionary's symbols that are no pieces, as characters of pretrained vocabularies can be."""
    model, _, _ = _load_model(folder, kind)
    pieces = {model.id_to_piece(piece) for piece in range(model.get_piece_size())}
    lines = read_text(folder / f"{kind}{DICTIONARY}").removesuffix("\n").split("\n")
    symbols = {line.rpartition(" ")[0]: index for index, line in enumerate(lines, len(SPECIAL))}
    return {symbol: symbols[symbol] for symbol in symbols.keys() - pieces - {TAG}}


@lru_cache(2)
def _tag_id(folder: Path, kind: str) -> int:
    return len(SPECIAL) + read_text(folder / f"{kind}{DICTIONARY}").split("\n").index(f"{TAG} 1")


def encode_block(text: Path, mask: Mask | None, vocabulary: Path, out: Path, kinds: Kinds, tagged: str = "") -> int:
    """Write the ids of a block's sentences, with ends, and their lengths; return the number of pairs.

    Lines of the side `tagged` begin with `TAG`.
    """
    arrays: dict[str, NDArray[Any]] = {}
    summary: dict[str, Any] = {}
    with Saved(text) as saved:
        for side, kind in zip(SIDES, kinds, strict=True):
            model, table, known = _load_model(vocabulary, kind)
            lines = saved.lines(side)
            if mask is not None:
                lines = list(itertools.compress(lines, mask.tolist()))
            others = _others(vocabulary, kind)
            ids, lengths = encode_lines(lines, model, table, others)
            most = max([int(table.max()), *others.values()])
            summary[side] = {
                "tokens": len(ids) - len(lengths),
                "unknown": int((ids == UNKNOWN).sum()),
                "words": sum(line.count(" ") + 1 for line in lines if line),
                "characters": sum(map(len, lines)),
                **count_characters(lines, known),
            }
            if side == tagged:
                tag, starts = _tag_id(vocabulary, kind), np.cumsum(lengths) - lengths
                ids, lengths, most = np.insert(ids, starts, tag), lengths + 1, max(most, tag)
            arrays |= {f"{side}_ids": ids.astype(id_type(most + 1)), f"{side}_lengths": lengths}
    summary["pairs"] = len(lengths)
    save(out, summary, **arrays)
    return len(lengths)


def encode_lines(
    lines: Sequence[str], model: sentencepiece.SentencePieceProcessor, table: NDArray[np.int32],
    others: Mapping[str, int],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:  # fmt: skip
    """Return the ids of all sentences with their ends, and their lengths.

    `table` has the id of each piece, and `others` those of texts that are unknown to the model.
    """
    pieces: list[list[int]] = model.encode(list(lines), num_threads=1)
    lengths = np.fromiter(map(len, pieces), np.int32, len(pieces))
    flat = np.fromiter(itertools.chain.from_iterable(pieces), np.int32, int(lengths.sum()))
    ids = np.full(len(flat) + len(lengths), EOS, np.int32)
    is_piece = np.ones(len(ids), np.bool_)
    is_piece[np.cumsum(lengths + 1, dtype=np.int64) - 1] = False
    ids[is_piece] = table[flat]
    ends = np.cumsum(lengths + 1)
    unknown = np.flatnonzero(ids == UNKNOWN) if others else ()
    for line in np.unique(np.searchsorted(ends, unknown, side="right")).tolist():
        names = model.encode(lines[line], out_type=str)
        for at, name in enumerate(names, ends[line] - len(names) - 1):
            if ids[at] == UNKNOWN:
                ids[at] = others.get(name, UNKNOWN)
    return ids, lengths + 1
