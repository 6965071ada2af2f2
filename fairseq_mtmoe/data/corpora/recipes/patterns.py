"""A corpus that stands for several: of the languages that are named, or whose files are there."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fairseq_mtmoe.data.corpora.recipes.codes import CODE, plain_code
from fairseq_mtmoe.data.corpora.recipes.parts import OPEN, SOURCE, TARGET, Corpus
from fairseq_mtmoe.errors import UserError


def of_language(corpus: Corpus, lang: str) -> Corpus:
    """The corpus of one language, for one whose pair has `xx`."""
    source, target = (lang if code in OPEN else code for code in corpus.languages)
    return _with_codes(replace(corpus, langs=[]), (source, target), (source, target))


def corpora_in(raw: Path, corpus: Corpus) -> list[Corpus]:
    """The corpora of all pairs whose files are in the folder, for one of any language; in the order of their pairs.

    Raises:
        UserError: only one side of a pair is there, or a pair comes twice, in both spellings.
    """
    found: dict[tuple[str, str], Corpus] = {}
    for spelling in _spellings_in(raw, corpus):
        source, target = plain = plain_code(spelling[0]), plain_code(spelling[1])
        if source == target or not all(map(_fits, plain, corpus.languages)):
            continue
        made = _with_codes(corpus, plain, spelling)
        if plain in found:
            files = f"{found[plain].files[0]} and {made.files[0]}"
            raise UserError(f"`{raw}` must have each pair in one spelling of its codes, but has {files}.")
        for file in made.files:
            if not (raw / file).exists():
                raise UserError(f"`{raw / file}` is missing: {source}-{target} needs both sides.")
        found[plain] = made
    return [found[pair] for pair in sorted(found)]


def _fits(code: str, wanted: str) -> bool:
    return wanted in OPEN or code == plain_code(wanted)


def _spellings_in(raw: Path, corpus: Corpus) -> list[tuple[str, str]]:
    """The codes of source and target that files have whose names are as in the corpus."""
    found = set()
    for file in corpus.files:
        folder, _, name = file.rpartition("/")
        pattern = _pattern(name)
        names = [path.name for path in (raw / folder).iterdir()] if (raw / folder).is_dir() else []
        found |= {(match["source"], match["target"]) for match in map(pattern.fullmatch, names) if match}
    return sorted(found)


def _pattern(name: str) -> re.Pattern[str]:
    """What names of files look like that are `name` with codes in the place of `{source}` and `{target}`."""
    text = re.escape(name)
    for hole, group in ((SOURCE, "source"), (TARGET, "target")):
        text = text.replace(re.escape(hole), f"(?P<{group}>{CODE.pattern})", 1).replace(
            re.escape(hole), f"(?P={group})"
        )
    return re.compile(text)


def _with_codes(corpus: Corpus, plain: tuple[str, str], spelling: tuple[str, str]) -> Corpus:
    """The corpus of two languages, for one of several pairs.

    Args:
        plain: source and target, as its name and pair have them.
        spelling: the codes that its files have.
    """

    def fill(value: Any, codes: tuple[str, str]) -> Any:
        if isinstance(value, list):
            return [fill(part, codes) for part in value]
        if isinstance(value, dict):
            return {key: fill(part, codes) for key, part in value.items()}
        return value.replace(SOURCE, codes[0]).replace(TARGET, codes[1]) if isinstance(value, str) else value

    values = {field.name: fill(getattr(corpus, field.name), spelling) for field in fields(Corpus)}
    is_named = SOURCE in corpus.name or TARGET in corpus.name
    name = corpus.name if is_named else f"{corpus.name}-{SOURCE}-{TARGET}"
    return Corpus(**{**values, "name": fill(name, plain), "pair": "-".join(plain)})
