"""Small raw corpora of made-up words, a recipe for them, and a way to prepare them within the test's process."""

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import yaml
from fairseq.data import Dictionary, data_utils

from fairseq_mtmoe.corpora import blocks
from fairseq_mtmoe.corpora.engine.pipeline import prepare
from fairseq_mtmoe.corpora.engine.workers import Workers
from fairseq_mtmoe.corpora.recipes.from_yaml import load_recipe
from fairseq_mtmoe.corpora.vocabulary.training import train_model

SYLLABLES = ("ba", "do", "fi", "gu", "ke", "lo", "mi", "nu", "pa", "ro", "si", "te")


def sentences(seed: object, count: int, first: str = "") -> list[str]:
    draw = random.Random(str(seed))
    return [
        " ".join([first + str(number % 7)] + ["".join(draw.choices(SYLLABLES, k=3)) for _ in range(4)]) + "."
        for number in range(count)
    ]


def write_corpus(raw: Path, name: str, source: Iterable[str], target: Iterable[str], pair: str = "en-de") -> list[str]:
    raw.mkdir(parents=True, exist_ok=True)
    names = [f"{name}.{lang}" for lang in pair.split("-")]
    for file, lines in zip(names, (source, target), strict=True):
        (raw / file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return names


def write_raw(raw: Path) -> Path:
    """Corpora of two pairs, with duplicates and evaluation sentences in training text; their recipe."""
    corpora = []

    def add(name: str, pair: str, role: str, source: list[str], target: list[str]) -> None:
        files = write_corpus(raw, name, source, target, pair)
        corpora.append({"name": name, "pair": pair, "role": role, "files": files})

    for pair, sizes in (("en-de", (90, 60)), ("en-et", (50,))):
        lang = pair.split("-")[1]
        tested = sentences("test", 8), sentences(f"test {lang}", 8, lang)
        add(f"test-{lang}", pair, "test", *tested)
        for number, size in enumerate(sizes):
            source, target = sentences((pair, number), size), sentences((lang, number), size, lang)
            # a pair again, another case, an evaluation sentence, and a pair of the other corpus
            source += [source[0], source[1].upper(), tested[0][2], sentences((pair, 0), 3)[2]]
            target += [target[0], target[1].upper(), "ka " + target[2], sentences((lang, 0), 3, lang)[2]]
            add(f"train-{lang}-{number}", pair, "train", source, target)
    (raw / "spm.model").write_bytes(train_model(sentences("text", 200) + sentences("more", 200, "de"), 60, 1.0))
    settings = {"held_out": {"valid": 10, "test": 10}, "vocabulary": {"model": "spm.model"}, "shards": {"pairs": 50}}
    path, recipe = raw / "recipe.yaml", {"name": "small", "corpora": corpora, **settings}
    path.write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    return path


def change(recipe: Path, **values: Any) -> None:
    content = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    recipe.write_text(yaml.safe_dump({**content, **values}, sort_keys=False), encoding="utf-8")


def entries(raw: Path) -> list[dict[str, Any]]:
    return yaml.safe_load((raw / "recipe.yaml").read_text(encoding="utf-8"))["corpora"]


@dataclass(frozen=True)
class Counting(Workers):
    """Workers of this process that count the jobs by function, and are interrupted before a job of `stop_before`."""

    stop_before: str = ""
    done: Counter[str] = field(default_factory=Counter)

    def results(self, jobs: Sequence[partial[Any]]) -> Iterator[tuple[int, Any]]:
        """See `Workers`."""
        for number, job in enumerate(jobs):
            name = job.func.__name__
            if name == self.stop_before and self.done[name]:
                raise KeyboardInterrupt
            self.done[name] += 1
            yield number, job()


def prepare_small(
    raw: Path, out: Path, workers: Workers | None = None, overwrite: bool = False
) -> dict[str, Any] | None:
    return prepare(raw, out, load_recipe(raw / "recipe.yaml"), workers or Workers(), overwrite)


def text_of(folder: Path, name: str) -> list[str]:
    """The text of a binarized file, read as fairseq reads it."""
    dictionary = Dictionary.load(str(folder / f"dict.{name.split('.')[-1]}.txt"))
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    dataset = data_utils.load_indexed_dataset(str(folder / name), dictionary)
    assert all(sentence[-1] == dictionary.eos() for sentence in dataset)
    return [model.decode(dictionary.string(sentence).split()) for sentence in dataset]


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def raw(tmp_path, monkeypatch):
    """Raw corpora, which are read in blocks of 20 pairs."""
    monkeypatch.setattr(blocks, "BLOCK", 20)
    write_raw(tmp_path / "raw")
    return tmp_path / "raw"
