"""Corpora of several pairs, whose files have language codes in their names."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.corpora.recipes.codes import CODE, matches, plain_code
from fairseq_mtmoe.corpora.recipes.schema import HOLES, SOURCE, TARGET, Corpus
from fairseq_mtmoe.translation.data.languages import languages

TABLES = (".arrow", ".parquet", ".jsonl")  # ends of names of a folder's tables


def corpora_in(raw: Path, corpus: Corpus) -> list[Corpus]:
    """Return a corpus, or if it is of several pairs, one for each whose files exist.

    A folder of tables has a corpus for each table.

    Raises `UserError` if one side is missing, a pair occurs twice, or a folder has no table.
    """
    if not corpus.is_open:
        is_folder = len(corpus.files) == 1 and (raw / corpus.files[0]).is_dir()
        return _tables_in(raw, corpus) if is_folder else [corpus]
    corpora: dict[tuple[str, str], Corpus] = {}
    for source, target in sorted(_spellings_in(raw, corpus)):
        plain = plain_code(source), plain_code(target)
        if plain[0] == plain[1] or not matches("-".join(plain), corpus.pair):
            continue
        filled = with_codes(corpus, plain, (source, target))
        if plain in corpora:
            files = f"{corpora[plain].files[0]} and {filled.files[0]}"
            raise UserError(
                f"`{raw}` contains a pair in two spellings of its codes: {files}; rename a file."
            )
        for file in filled.files:
            if not filled.is_synthetic and not (raw / file).exists():
                raise UserError(
                    f"`{raw / file}` does not exist: {'-'.join(plain)} needs both sides."
                )
        corpora[plain] = filled
    return [corpora[pair] for pair in sorted(corpora)]


def _tables_in(raw: Path, corpus: Corpus) -> list[Corpus]:
    """Return a corpus for each table of a folder, in the order of their names."""
    (folder,) = corpus.files
    names = sorted(path.name for path in (raw / folder).iterdir())
    # `datasets` keeps the results of `map` beside a folder's tables, as `cache-….arrow`.
    tables = [name for name in names if name.endswith(TABLES) and not name.startswith("cache-")]
    if not tables:
        raise UserError(
            f"`{raw / folder}` contains no table ({', '.join(TABLES)}), only "
            f"{', '.join(names) or 'nothing'}; name the folder of one split."
        )
    corpora = []
    for number, table in enumerate(tables, 1):
        name = f"{corpus.name}.{number}" if len(tables) > 1 else corpus.name
        corpora.append(replace(corpus, name=name, files=[f"{folder}/{table}"]))
    return corpora


def _spellings_in(raw: Path, corpus: Corpus) -> set[tuple[str, str]]:
    """Return the codes of source and target in the names of a corpus' files."""
    spellings: set[tuple[str, str]] = set()
    for file in corpus.files:
        folder, _, name = file.rpartition("/")
        if not (raw / folder).is_dir():
            continue
        pattern = _pattern(name)
        for path in (raw / folder).iterdir():
            if match := pattern.fullmatch(path.name):
                spellings.add((match["source"], match["target"]))
    return spellings


def _pattern(name: str) -> re.Pattern[str]:
    """Return a pattern for file names.

    It has codes in place of `{source}` and `{target}` in `name`.
    """
    text = re.escape(name)
    for hole, group in zip(HOLES, ("source", "target"), strict=True):
        text = text.replace(re.escape(hole), f"(?P<{group}>{CODE.pattern})", 1)
        text = text.replace(re.escape(hole), f"(?P={group})")
    return re.compile(text)


def example_files(raw: Path, corpus: Corpus) -> list[str]:
    """Return a corpus' files for languages that names in `raw` have."""
    words = [*re.findall("[a-z]+", " ".join(sorted(os.listdir(raw)))), "en", "de"]
    codes = [word for word in words if word in languages() and word not in corpus.languages]
    chosen = dict(zip(corpus.holes, dict.fromkeys(codes), strict=False))
    source, target = (chosen.get(lang, lang) for lang in corpus.languages)
    return with_codes(corpus, (source, target), (source, target)).files


def with_codes(corpus: Corpus, plain: tuple[str, str], spelling: tuple[str, str]) -> Corpus:
    """Return a corpus of several pairs for one pair.

    `plain` codes are in name and pair, `spelling` is in its files.
    """
    values = {name: _filled(value, spelling) for name, value in vars(corpus).items()}
    name = corpus.name
    if SOURCE not in name and TARGET not in name:
        name = f"{name}-{SOURCE}-{TARGET}"
    return Corpus(**{**values, "name": _filled(name, plain), "pair": "-".join(plain), "langs": {}})


def _filled(value: Any, codes: Sequence[str]) -> Any:
    """Return a value with codes in place of `{source}` and `{target}` in its texts."""
    if isinstance(value, list):
        return [_filled(part, codes) for part in value]
    if isinstance(value, dict):
        return {key: _filled(part, codes) for key, part in value.items()}
    if isinstance(value, str):
        return value.replace(SOURCE, codes[0]).replace(TARGET, codes[1])
    return value
