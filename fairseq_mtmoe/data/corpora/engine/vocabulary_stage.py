"""The stage between text and ids: a vocabulary for all languages, trained or given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_mtmoe.data.corpora.binarize import SPECIAL, write_dictionary
from fairseq_mtmoe.data.corpora.engine.encoding import gather_text, text_sizes
from fairseq_mtmoe.data.corpora.engine.progress import Shown
from fairseq_mtmoe.data.corpora.engine.selecting import Selection
from fairseq_mtmoe.data.corpora.engine.store import Stage, WorkFolder
from fairseq_mtmoe.data.corpora.engine.workers import Workers
from fairseq_mtmoe.data.corpora.recipes import Recipe
from fairseq_mtmoe.data.corpora.spm import RECIPE_NAMES, SIZE_RULE
from fairseq_mtmoe.data.corpora.vocabulary import Pieces, load, sample_lines, train
from fairseq_mtmoe.io.files import read_bytes, replacing

TRAINED_BY = ("size", "temperature", "character_coverage")
"""What of a recipe's vocabulary decides about a trained model."""


@dataclass(frozen=True)
class Vocabulary:
    """Where the vocabulary is."""

    stage: Stage
    symbols: int  # of the dictionary, with fairseq's four
    wanted: int  # how many there were to be

    @property
    def model(self) -> Path:
        """The SentencePiece model."""
        return self.stage.folder / "spm.model"

    @property
    def dictionary(self) -> Path:
        """fairseq's dictionary, the same for all languages."""
        return self.stage.folder / "dict.txt"

    @property
    def ids(self) -> Path:
        """The dictionary's id for each piece of the model."""
        return self.stage.folder / "ids.npy"


def make_vocabulary(
    work: WorkFolder,
    recipe: Recipe,
    given: Mapping[str, Path],
    digests: Sequence[str],
    selections: Mapping[str, Sequence[Selection]],
    workers: Workers,
    shown: Shown,
    names: tuple[str, str] = RECIPE_NAMES,
) -> Vocabulary:
    """Train a model on text that is drawn by temperature, or take the given one.

    Args:
        given: the recipe's files: `model` and `dictionary`, where it has them.
        digests: of these.
        selections: the training text of each language pair.
        names: what a user calls size and character coverage.

    Raises:
        UserError: the text is too small for the vocabulary, or a given file is none of its kind.
    """
    if given:
        stage = work.stage("vocabulary", given=list(digests))
    else:
        keys = {pair: [one.key for one in of_pair] for pair, of_pair in sorted(selections.items())}
        settings = {name: getattr(recipe.vocabulary, name) for name in TRAINED_BY}
        about = {"settings": settings, "seed": recipe.seed, "sentencepiece": version("sentencepiece")}
        stage = work.stage("vocabulary", text=keys, **about)
    result = stage.result()
    if result is None:
        sizes = {} if given else text_sizes(selections)
        places = sample_lines(sizes, recipe.vocabulary.temperature, recipe.seed)
        text = gather_text(selections, places, workers, shown) if places else []
        with shown.step("Making the vocabulary"):
            if given:
                model, wanted = read_bytes(given["model"]), 0
            else:
                model, wanted = train(text, recipe.vocabulary, sum(sizes.values()), names)
            result = _write(stage, model, load(model, given.get("dictionary")), wanted)
        if recipe.vocabulary.size is None and not given:
            shown.note(f"Vocabulary: {result['symbols']:,} pieces, as nothing says how many: {SIZE_RULE}")
    return Vocabulary(stage, int(result["symbols"]), int(result["wanted"]))


def _write(stage: Stage, model: bytes, pieces: Pieces, wanted: int) -> dict[str, Any]:
    with replacing(stage.folder / "spm.model") as path:
        path.write_bytes(model)
    with replacing(stage.folder / "ids.npy") as path:
        np.save(path, pieces.ids)
    with replacing(stage.folder / "dict.txt") as path:
        write_dictionary(path, pieces.symbols)
    return stage.finish({"symbols": len(SPECIAL) + len(pieces.symbols), "wanted": wanted})
