"""The index of mtdata: where parallel text is published (Gowda et al. 2021).

mtdata's package brings the index, so that no network is needed. Its command writes the index as
JSON lines into the user's folder, once. These are read here, and not the pickle beside them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from fairseq_mtmoe.core.errors import UserError, suggestion
from fairseq_mtmoe.corpora.recipes.named.codes import recipe_code

_SECONDS = 300  # for writing the index, which takes about 20 s
_BEGIN = '{"did": "'  # of each line of the index; the identifier follows


@dataclass(frozen=True, config=ConfigDict(extra="ignore"))
class DataSet:
    """A data set of the index: addresses, and how its text lies in their files."""

    did: str  # identifier, such as OPUS-ccmatrix-v1-eng-hau
    url: str | list[str]  # of both languages' file, or one of each
    ext: str  # format of the file, or of an archive
    filename: str
    in_paths: tuple[str, ...] = ()  # members of an archive, with `*`
    in_ext: str = ""  # their format
    cols: tuple[int, ...] = ()  # columns of a table with the text, from 0
    cite: tuple[str, ...] = ()  # keys of the bibliography

    @property
    def addresses(self) -> list[str]:
        """Return the addresses: one, or one of each language."""
        return [self.url] if isinstance(self.url, str) else self.url

    @property
    def langs(self) -> list[str]:
        """Return the languages, in a recipe's codes: two, or one."""
        return languages_of(self.did)


def languages_of(name: str) -> list[str]:
    """Return the languages at the end of an identifier, in a recipe's codes."""
    return [recipe_code(code) for code in name.split("-")[3:]]


def data_set_of(name: str, where: str) -> DataSet:
    """Return a data set by its identifier, such as `OPUS-ccmatrix-v1-eng-hau`.

    Its languages may be in the other order, and in other codes (`Flores-flores200_dev-1-swa-hau`).
    Raises `UserError` if the index has no such data set; the sentence names a similar one.
    """
    lines = _lines()
    if name in lines:
        return _data_set(lines[name])
    group = f"{name.partition('-')[0]}-"
    langs = {*languages_of(name)}
    same_languages = []
    for other in lines:
        if other.startswith(group) and {*languages_of(other)} == langs:
            same_languages.append(other)
    found = [other for other in same_languages if other.split("-")[:3] == name.split("-")[:3]]
    if len(found) == 1:
        return _data_set(lines[found[0]])
    hint = suggestion(name, same_languages)
    raise UserError(
        f"`{where}: mtdata` has {name}, which is not in the index of mtdata{hint}: "
        "`mtmoe download --from mtdata --langs en,ha --list` shows what there is for two languages."
    )


def matching(pattern: str) -> list[str]:
    """Return the identifiers that match a pattern with `*`, in the index's order."""
    wanted = pattern.replace("[", "[[]").replace("?", "[?]")
    return [name for name in _lines() if fnmatchcase(name, wanted)]


def between(langs: tuple[str, ...]) -> Iterator[DataSet]:
    """Yield the parallel data sets of all pairs of some languages.

    langs: codes as recipes have them.
    """
    for name, line in _lines().items():
        codes = languages_of(name)
        if len(codes) == 2 and codes[0] != codes[1] and {*langs}.issuperset(codes):
            yield _data_set(line)


def citation(key: str) -> str:
    """Return an entry of mtdata's bibliography, in BibTeX."""
    return str(_bibliography().entries[key].to_string("bibtex")).strip()


@cache
def _bibliography():  # type: ignore[no-untyped-def]  # pybtex has no types
    from mtdata import resource_dir
    from pybtex.database import parse_file

    return parse_file(resource_dir / "refs.bib", "bibtex")


@cache
def _lines() -> dict[str, str]:
    """Return the index's lines by identifier."""
    lines = {}
    with _index_file().open(encoding="utf-8") as file:
        for line in file:
            lines[line[len(_BEGIN) : line.index('"', len(_BEGIN))]] = line
    return lines


def _data_set(line: str) -> DataSet:
    return DataSet(**json.loads(line))


def _index_file() -> Path:
    """Return mtdata's index as JSON lines; the first time its command writes it.

    Raises `UserError` without the package, or if the command fails.
    """
    try:
        import portalocker
        from mtdata import cached_index_file
    except ModuleNotFoundError as error:
        raise UserError(
            f"Data sets of mtdata need the Python package {error.name}: run `pip install "
            "'fairseq_mtmoe[corpora]'`."
        ) from error
    path = Path(cached_index_file).with_suffix(".jsonl")
    if path.parent.exists():
        # Another process that writes the index holds this lock.
        with portalocker.Lock(path.with_suffix("._lock"), "w", timeout=_SECONDS):
            pass
    if not path.exists():
        print(f"Writing mtdata's index to {path}, once …", file=sys.stderr)
        # Not in the current folder, whose modules named mtdata*.py the command would run
        folder = Path(sys.executable).parent
        command = [sys.executable, "-m", "mtdata", "list", "-l", "eng-hau"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode or not path.exists():
            raise UserError(f"`{path}` cannot be written by mtdata: {done.stderr.strip()[-300:]}")
    return path
