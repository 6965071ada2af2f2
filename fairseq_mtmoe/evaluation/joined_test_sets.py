"""Make missing test sets by joining two that share a third language.

Lines of `test.en-ha` and `test.en-zu` with equal English sides make a test set of ha-zu, as in multi-parallel sets such
as FLORES-200.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fairseq.data import indexed_dataset

from fairseq_mtmoe.data.translation.file_names import TEXT_FOLDER, find_side, side_name
from fairseq_mtmoe.data.translation.recorded_sizes import FILE_NAME as SIZES
from fairseq_mtmoe.errors import UserError, raise_invalid, shortened
from fairseq_mtmoe.evaluation.test_sets import folders, lines_of, raw_of, sentences_in, size_of, sizes_of, text_of

LEAST = 10  # least number of lines of a test set
FIRST = "en"  # preferred among languages with equally many common lines

Rows = list[tuple[int, int]]  # numbers of lines in two test sets


@dataclass(frozen=True)
class Half:
    """One of two joined test sets: its shared side, and the side that it provides."""

    shared: Path  # without suffix
    own: Path

    @property
    def name(self) -> str:
        """The test set's name."""
        return self.own.name.rpartition(".")[0]


@contextmanager
def with_joined(data: str, subset: str, wanted: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield a data directory with all wanted pairs' test sets, and notes on joins.

    Raises:
        UserError: a pair has no test set and no two to join, or these have too few lines in common.
    """
    sizes = sizes_of(data, subset)
    absent = [pair for pair in dict.fromkeys(wanted) if size_of(pair, sizes) is None]
    if not absent:
        yield data, []
        return
    first, said = folders(data)[0], []
    joined = {pair: _joined(first, subset, pair, sizes) for pair in absent}
    with TemporaryDirectory(prefix="mtmoe-") as name:
        folder = Path(name)
        for inner in ("", TEXT_FOLDER):
            (folder / inner).mkdir(exist_ok=True)
            for path in (first / inner).iterdir() if (first / inner).is_dir() else ():
                if path.name not in (TEXT_FOLDER, SIZES):
                    (folder / inner / path.name).symlink_to(path.absolute())
        for pair, (lang, halves, rows) in joined.items():
            for number, (half, code) in enumerate(zip(halves, pair.split("-"), strict=True)):
                _write(half.own, folder / side_name(subset, pair, code), [row[number] for row in rows])
            sets = " and ".join(half.name for half in halves)
            said.append(f"{pair}: {len(rows):,} lines of {sets} have the same text of {lang}")
        yield str(folder), said


def _joined(folder: Path, subset: str, pair: str, sizes: Mapping[str, int]) -> tuple[str, list[Half], Rows]:
    """Return the joining language with most common lines, both test sets, and lines."""
    source, _, target = pair.partition("-")
    third = {lang for one in sizes for lang in one.split("-")} - {source, target}
    able = [lang for lang in sorted(third) if all(size_of(f"{lang}-{side}", sizes) for side in (source, target))]
    if not able or source == target:
        known = shortened(sorted(sizes), pair)
        rule = f"pairs that the data directory has ({known}), or of two languages that share a third"
        raise_invalid("--lang-pairs", f"{rule} there", pair)
    found = []
    for lang in sorted(able, key=lambda lang: lang != FIRST):
        halves = [Half(*_sides(folder, subset, lang, side)) for side in (source, target)]
        found.append((lang, halves, _equal(*(half.shared for half in halves))))
    lang, halves, rows = max(found, key=lambda one: len(one[2]))
    if len(rows) < LEAST:
        sets = " and ".join(half.name for half in halves)
        raise UserError(
            f"`--lang-pairs` has {pair}, which has no test set in DATA: {sets} must have at least {LEAST} lines of "
            f"{lang} in common to make one, but have {len(rows)}."
        )
    return lang, halves, rows


def _sides(folder: Path, subset: str, shared: str, own: str) -> tuple[Path, Path]:
    paths = [find_side(folder, subset, shared, own, lang) for lang in (shared, own)]
    missing = next((lang for lang, path in zip((shared, own), paths, strict=True) if path is None), None)
    if missing is not None:
        raise UserError(f"`{folder}` must have both sides of {subset}.{shared}-{own}, but has none of {missing}.")
    return Path(str(paths[0])), Path(str(paths[1]))


def _equal(one: Path, other: Path) -> Rows:
    """Return the numbers of lines with equal text (or tokens), the n-th with the n-th."""
    keys: list[Any] = [_text(path) for path in (one, other)]
    if None in keys:
        keys = [[tuple(ids.tolist()) for ids in sentences_in(path)] for path in (one, other)]
    numbers: dict[Any, list[int]] = defaultdict(list)
    for number, key in reversed(list(enumerate(keys[1]))):
        numbers[key].append(number)
    return [(number, numbers[key].pop()) for number, key in enumerate(keys[0]) if numbers[key]]


def _text(prefix: Path) -> list[str] | None:
    """Return a side's text, None without it (UserError: its length is wrong)."""
    raw = raw_of(prefix)
    return text_of(raw, len(sentences_in(prefix))) if raw.exists() else None


def _write(prefix: Path, target: Path, numbers: Sequence[int]) -> None:
    """Write these lines of a side as ids and, if it exists, as text with references."""
    sentences = sentences_in(prefix)
    builder = indexed_dataset.make_builder(f"{target}.bin", "mmap", vocab_size=None)
    for number in numbers:
        builder.add_item(sentences[number])
    builder.finalize(f"{target}.idx")
    raw = raw_of(prefix)
    for path in (raw, *sorted(raw.parent.glob(f"{raw.name}.[0-9]*"))):
        if os.path.exists(path):
            lines = lines_of(path)
            kept = "".join(f"{lines[number]}\n" for number in numbers if number < len(lines))
            raw_of(target).with_name(target.name + path.name.removeprefix(raw.name)).write_text(kept, encoding="utf-8")
