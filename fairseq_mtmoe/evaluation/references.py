"""What translations are compared with.

The text of a test set, where the data directory has it: `raw/test.en-de.de` beside `test.en-de.de.bin`, as `mtmoe
prepare` writes it, and further references of the same sentences in `raw/test.en-de.de.1`, `.2` and so on. A binarized
file alone does not hold the text: words that the dictionary does not have are lost, and fairseq-generate compares with
`<<unk>>` in their place.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from fairseq.data import Dictionary, data_utils

from fairseq_mtmoe.data.translation.file_names import TEXT_FOLDER, find_side, side_name
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.evaluation.test_sets import folders
from fairseq_mtmoe.io.files import text_lines

TEXT, FAIRSEQ = "text", "fairseq"
WAYS = (TEXT, FAIRSEQ)

_ANYTHING = "\ue000"  # stands for an unknown word; Unicode gives it to no character


class Speller:
    """From tokens to text, as fairseq-generate does it.

    Args:
        dictionary: of the target language.
        post_process: how fairseq puts words together, such as `sentencepiece`.
        ignored: tokens that are no text, besides those at the end and the beginning of a sentence.
    """

    def __init__(self, dictionary: Dictionary, post_process: str | None, ignored: Iterable[int] = ()) -> None:
        self.dictionary, self._post_process, self._ignored = dictionary, post_process, set(ignored)

    def __call__(self, tokens: torch.Tensor, unknown: str) -> str:
        """The text, with `unknown` for each unknown word."""
        text: str = self.dictionary.string(
            tokens.tolist(), self._post_process, extra_symbols_to_ignore=self._ignored, unk_string=unknown
        )
        return text


@dataclass(frozen=True)
class References:
    """The references of one test set, in the order of its files."""

    lines: list[str]
    file: str  # where they are from, in the data directory
    altered: int  # lines that are not the text, because the dictionary does not have some of their words
    more: tuple[list[str], ...] = ()  # further references of every line, "" where it has none


def load_references(data: str, subset: str, pair: str, spell: Speller, way: str) -> References:
    """The references of a pair's test set.

    Args:
        data: the data directory, as fairseq takes it.
        way: `TEXT` is the text in `raw/`, and the binarized words where there is none; `FAIRSEQ` is these always.

    Raises:
        UserError: the text in `raw/` is not that of the binarized file, or further references are not as many.
    """
    prefix = _target_prefix(data, subset, pair)
    dictionary = spell.dictionary
    sentences = _load(prefix, dictionary)
    raw = find_text(data, subset, pair)
    if way == TEXT and raw is not None:
        lines = _lines(raw)
        _check_same(raw, lines, [spell(tokens, _ANYTHING) for tokens in sentences])
        return References(lines, f"{TEXT_FOLDER}/{raw.name}", altered=0, more=_further(raw, len(lines)))
    escaped = dictionary.unk_string(escape=True)
    altered = sum(bool((tokens == dictionary.unk()).any()) for tokens in sentences)
    return References([spell(tokens, escaped) for tokens in sentences], f"{prefix.name}.bin", altered)


def load_sources(data: str, subset: str, pair: str, spell: Speller) -> list[str]:
    """The source text of a pair's test set: in `raw/`, else the binarized words.

    Args:
        data: the data directory, as fairseq takes it.
        spell: by the dictionary of the source language.

    Raises:
        UserError: the text in `raw/` is not that of the binarized file.
    """
    prefix = _prefix(data, subset, pair, pair.partition("-")[0])
    sentences = _load(prefix, spell.dictionary)
    raw = prefix.parent / TEXT_FOLDER / prefix.name
    if not raw.exists():
        return [spell(tokens, spell.dictionary.unk_string()) for tokens in sentences]
    lines = _lines(raw)
    _check_same(raw, lines, [spell(tokens, _ANYTHING) for tokens in sentences])
    return lines


def find_text(data: str, subset: str, pair: str) -> Path | None:
    """The file in `raw/` that has the references of a pair's test set, if there is one."""
    prefix = _target_prefix(data, subset, pair)
    raw = prefix.parent / TEXT_FOLDER / prefix.name
    return raw if raw.exists() else None


def _lines(path: Path) -> list[str]:
    return [" ".join(line.splitlines()) for line in text_lines(path)]


def _further(raw: Path, count: int) -> tuple[list[str], ...]:
    """The further references beside the first ones: files with numbers from 1 on."""
    found: list[list[str]] = []
    while (path := raw.with_name(f"{raw.name}.{len(found) + 1}")).exists():
        found.append(_lines(path))
        if len(found[-1]) != count:
            raise UserError(
                f"`{path}` must have a line for each of the {count} of `{raw.name}`, empty where there is no further "
                f"reference, but has {len(found[-1])}."
            )
    return tuple(found)


def _target_prefix(data: str, subset: str, pair: str) -> Path:
    return _prefix(data, subset, pair, pair.partition("-")[2])


def _prefix(data: str, subset: str, pair: str, lang: str) -> Path:
    """The files of a side, without their suffixes; they serve both directions of a pair."""
    source, _, target = pair.partition("-")
    folder = folders(data)[0]
    return Path(find_side(folder, subset, source, target, lang) or folder / side_name(subset, pair, lang))


def _load(prefix: Path, dictionary: Dictionary) -> list[torch.Tensor]:
    dataset = data_utils.load_indexed_dataset(str(prefix), dictionary)
    if dataset.supports_prefetch:  # the older formats read nothing before
        dataset.prefetch(range(len(dataset)))
    return [dataset[number] for number in range(len(dataset))]


def _check_same(raw: Path, lines: Sequence[str], binarized: Sequence[str]) -> None:
    """Raise `UserError` unless `lines` can be what was binarized, line by line."""
    advice = "put the right text there, or give `--references fairseq`"
    if len(lines) != len(binarized):
        raise UserError(
            f"`{raw}` must be the text of `{raw.name}.bin` ({len(binarized)} lines), but has {len(lines)}; {advice}."
        )
    for number, (line, pattern) in enumerate(zip(lines, binarized, strict=True), start=1):
        if not _fits(_letters(line), _letters(pattern).split(_ANYTHING)):
            raise UserError(
                f"`{raw}` must be the text of `{raw.name}.bin`, but line {number} is another there; {advice}."
            )


def _letters(text: str) -> str:
    """What of a line tokenizing, lower-casing and SentencePiece's normalisation leave: letters and digits."""
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return "".join(character for character in folded if character.isalnum() or character == _ANYTHING)


def _fits(text: str, parts: Sequence[str]) -> bool:
    """Whether `text` is these parts in this order, with anything between them."""
    first, *others = parts
    if not others:
        return text == first
    if not text.startswith(first):
        return False
    place = len(first)
    for part in others[:-1]:
        found = text.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return text.endswith(others[-1]) and len(text) - len(others[-1]) >= place
