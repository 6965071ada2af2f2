"""Make the text of the study `captions` from Multi30k.

    git clone https://github.com/multi30k/dataset
    python benchmarks/captions_text.py dataset RAW
    mtmoe prepare corpora RAW DATA --recipe folder --vocab-size 4000

Training is the first 29,000 pairs of German, 12,000 of French and 3,000 of Czech, less one pair whose English is in
validation. The test set is that of 2016. The folders RAW-2017, RAW-coco and RAW-2018 have other test sets: prepare
them as DATA-2017 and so on with `--vocabulary-from DATA` in the place of `--vocab-size 4000`. In RAW,
`sha256sum -c …/benchmarks/studies/captions.sha256` compares the files with the study's.
"""

from __future__ import annotations

import gzip
import html
from pathlib import Path

import click
from parallel_text import Pair, write_pairs

PAIRS = {"de": 29_000, "fr": 12_000, "cs": 3000}
FURTHER = {"2017": "test_2017_flickr", "coco": "test_2017_mscoco", "2018": "test_2018_flickr"}


def read_pairs(raw: Path, name: str, language: str) -> list[Pair]:
    english, other = (_lines(raw / f"{name}.{code}.gz") for code in ("en", language))
    return list(zip(english, other, strict=True))


def _lines(path: Path) -> list[str]:
    """Return the lines of a packed file, with single spaces and letters in the place of HTML's entities."""
    text = gzip.decompress(path.read_bytes()).decode("utf-8")
    return [" ".join(html.unescape(line).split()) for line in text.removesuffix("\n").split("\n")]


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("target", type=click.Path(path_type=Path, file_okay=False))
def main(dataset: Path, target: Path) -> None:
    """Write the study's text from DATASET, a checkout of multi30k/dataset, into the folder TARGET."""
    raw = dataset / "data" / "task1" / "raw"
    for language, most in PAIRS.items():
        valid, test = (read_pairs(raw, name, language) for name in ("val", "test_2016_flickr"))
        held_out = {english for english, _ in [*valid, *test]}
        train = [pair for pair in read_pairs(raw, "train", language) if pair[0] not in held_out]
        splits = {"train": train[:most], "valid": valid, "test": test}
        write_pairs(target, language, splits)
        for name, file in FURTHER.items():
            if (raw / f"{file}.{language}.gz").exists():
                splits["test"] = read_pairs(raw, file, language)
                write_pairs(target.with_name(f"{target.name}-{name}"), language, splits)


if __name__ == "__main__":
    main()
