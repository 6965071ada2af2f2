"""Make the text of the study `languages` from a folder of parallel text with the origin of each line.

    python benchmarks/languages_text.py ML50 RAW
    mtmoe prepare corpora RAW DATA --recipe folder --vocab-size 3000
    python benchmarks/languages_text.py ML50 MORE --add mr,ro        # for `new_languages`

ML50 holds `{train,valid,test}.en-xx.{en,xx}` and `meta/*.origin`. RAW gets the lines from Tatoeba in 14 languages, of
which five keep 1,000 pairs in training. Tatoeba has many variants of one sentence, so validation and test lose every
pair of which a side is nearly a training line of its language pair. With more languages, of which training has all, the
others keep a tenth of their training.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from pathlib import Path

import click
from parallel_text import Pair, near_copies, write_pairs

LARGE = ("ar", "de", "es", "fi", "fr", "he", "it", "pl", "ru")
SMALL = ("mk", "nl", "pt", "sv", "uk")
SMALL_PAIRS, KEPT = 1000, 0.1
ORIGIN, SEED, GRAM, OVERLAP = "tatoeba", 1, 5, 0.8


def grams(line: str) -> set[Hashable]:
    """Return the character 5-grams of a line in lower case; a shorter line is one gram."""
    text = " ".join(line.lower().split())
    return {text[at : at + GRAM] for at in range(max(len(text) - GRAM + 1, 1))}


def without_near_copies(pairs: Sequence[Pair], train: Sequence[Pair]) -> list[Pair]:
    """Return the pairs of which neither side is nearly a training line."""
    english, other = (
        near_copies([pair[side] for pair in pairs], [pair[side] for pair in train], grams, OVERLAP) for side in (0, 1)
    )
    return [pair for pair, *near in zip(pairs, english, other, strict=True) if not any(near)]


def read_pairs(folder: Path, split: str, language: str) -> list[Pair]:
    """Return the pairs of a split whose origin is Tatoeba, in the files' order."""
    stem = f"{split}.en-{language}"
    english, other = (_lines(folder / f"{stem}.{side}") for side in ("en", language))
    origins = _lines(folder / "meta" / f"{stem}.origin")
    return [(one, two) for one, two, origin in zip(english, other, origins, strict=True) if origin == ORIGIN]


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n")


@click.command()
@click.argument("source", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("target", type=click.Path(path_type=Path, file_okay=False))
@click.option("--add", default="", metavar="LANG,…", help="More languages; the others keep a tenth of their training.")
def main(source: Path, target: Path, add: str) -> None:
    """Write the study's text from the folder SOURCE into the folder TARGET."""
    target.mkdir(parents=True)
    more = tuple(filter(None, add.split(",")))
    for language in sorted((*LARGE, *SMALL, *more)):
        train = read_pairs(source, "train", language)
        if language in SMALL:
            train = random.Random(SEED).sample(train, SMALL_PAIRS)
        splits = {"train": train}
        for split in ("valid", "test"):
            splits[split] = without_near_copies(read_pairs(source, split, language), train)
        if more and language not in more:
            splits["train"] = random.Random(SEED).sample(train, round(KEPT * len(train)))
        write_pairs(target, language, splits)
        click.echo(f"en-{language}: " + ", ".join(f"{split} {len(pairs):,}" for split, pairs in splits.items()))


if __name__ == "__main__":
    main()
