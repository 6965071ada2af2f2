"""A translation task that a tiny model learns in a minute: three "languages" of digits.

From digits (`en`): `aa` is a copy, `bb` the reversal, `cc` every digit shifted by one. The model must know the target
language to do any of them. The training sizes are skewed: high, mid and low resource.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary

from fairseq_mtmoe.translation.task.config import TranslationHeatedConfig
from fairseq_mtmoe.translation.task.task import TranslationHeatedTask
from tests.helpers.binarized import write_ids

TRANSLATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "aa": lambda digits: digits,
    "bb": lambda digits: digits[::-1],
    "cc": lambda digits: (digits + 1) % 10,
}
PAIRS = tuple(f"en-{target}" for target in TRANSLATIONS)
SHARES = {"aa": 1, "bb": 4, "cc": 10}  # the training data is divided by these: tiers high, mid and low


def make_digit_corpus(
    folder: str | Path, seed: int = 1, train: int = 3000, valid: int = 60, test: int = 60, targets: str = "aa,bb,cc"
) -> Path:
    """Write a data directory as `fairseq-preprocess` would, with `train` sentences of the largest pair."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    dictionary = digit_dictionary()
    for lang in ("en", *targets.split(",")):
        dictionary.save(str(folder / f"dict.{lang}.txt"))
    random = np.random.default_rng(seed)
    for target in targets.split(","):
        for split, count in (("train", train // SHARES[target]), ("valid", valid), ("test", test)):
            sources = [random.integers(0, 10, random.integers(4, 9)) for _ in range(count)]
            prefix = folder / f"{split}.en-{target}"
            write_digits(f"{prefix}.en", sources, dictionary)
            write_digits(f"{prefix}.{target}", [TRANSLATIONS[target](source) for source in sources], dictionary)
    return folder


def digit_fixture(**sizes: int) -> Any:
    """A fixture: one corpus of these sizes for the tests of a session; tests that change files copy it."""
    import pytest  # which benchmarks may lack

    def folder(tmp_path_factory: Any) -> Path:
        return make_digit_corpus(tmp_path_factory.mktemp("digits"), **sizes)

    return pytest.fixture(scope="session")(folder)


def digit_dictionary() -> Dictionary:
    dictionary = Dictionary()
    for digit in range(10):
        dictionary.add_symbol(str(digit), n=100 - digit)
    return dictionary


def write_digits(prefix: str, sentences: list[np.ndarray], dictionary: Dictionary) -> None:
    numbers = ([*(dictionary.index(str(digit)) for digit in sentence), dictionary.eos()] for sentence in sentences)
    write_ids(prefix, map(torch.tensor, numbers), len(dictionary))


def digit_task(data: str | Path, **options: Any) -> TranslationHeatedTask:
    """The task `translation_heated` on a digit corpus, as the commands set it up with these options."""
    pairs = None if "source_lang" in options else ",".join(PAIRS)
    defaults = {"lang_pairs": pairs, "encoder_langtok": "tgt", "seed": 1, "dataset_impl": None, "max_epoch": 0}
    defaults |= {"train_subset": "train", "update_freq": [1], "save_dir": str(data)}
    return TranslationHeatedTask.setup_task(TranslationHeatedConfig(data=str(data), **{**defaults, **options}))
