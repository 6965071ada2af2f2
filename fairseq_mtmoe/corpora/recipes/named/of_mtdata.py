"""Entries of a recipe that name data sets of mtdata.

They become entries with files and addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.corpora.recipes.codes import OPEN, plain_pair, reversed_pair
from fairseq_mtmoe.corpora.recipes.named.codes import long_code, recipe_code
from fairseq_mtmoe.corpora.recipes.named.entries import Fields, choice_of, names_in, place_of
from fairseq_mtmoe.corpora.recipes.named.mtdata_index import (
    DataSet,
    citation,
    data_set_of,
    matching,
)
from fairseq_mtmoe.corpora.recipes.schema import ARCHIVE, BACK_TRANSLATED, SOURCE, TARGET, name_of

MTDATA = "mtdata"  # key of entries that name data sets
# Formats of readers by mtdata's names. Other formats have no reader.
_FORMATS = {"txt": "moses", "tsv": "tsv", "tmx": "tmx", "sgm": "sgm", "wmt21xml": "wmt"}
_COMPRESSED = re.compile(r"\.(gz|bz2|xz)$")


def of_mtdata(where: str, entry: Fields) -> list[Fields]:
    """Return an entry for each data set that an entry names by `mtdata`.

    The entry's other fields are kept.

    Raises:
        UserError: the index lacks a name, its data set is in an unknown format, or the index says
            that both languages are the same text.
    """
    rest = {key: value for key, value in entry.items() if key not in (MTDATA, "limit", "langs")}
    entries: list[Fields] = []
    for name, pair in _named(where, entry):
        data_set = data_set_of(name, where)
        _check_kind(data_set, entry, where)
        if len(data_set.langs) == 1:
            about = _one_language(data_set, pair, where)
            entries.append({"role": "train", **about, **rest, "pair": about["pair"]})
            continue
        for about in _parts(data_set, where):
            oriented = _oriented(about, pair, where) if pair else about
            entries.append({"role": "train", **oriented, **rest, "pair": oriented["pair"]})
    return entries


def _check_kind(data_set: DataSet, entry: Fields, where: str) -> None:
    """Raise `UserError` if `mono` has parallel text, or `test` has none."""
    is_mono = entry.get("kind") == BACK_TRANSLATED
    if len(data_set.langs) == 2 and is_mono:
        kind, place = "parallel text", "under `corpora`, `valid` or `test`"
    elif len(data_set.langs) == 1 and entry.get("role", "train") != "train":
        kind, place = "text in one language", "under `mono`"
    else:
        return
    raise UserError(f"`{where}: mtdata` has {data_set.did}, which is {kind}: put it {place}.")


def _named(where: str, entry: Fields) -> Iterator[tuple[str, str]]:
    """Yield the identifiers that an entry names, each with its pair, if given."""
    choice = choice_of(where, entry)
    names = names_in(where, MTDATA, entry)
    if bool(choice.langs) != any(map(_is_open, names)):
        rule = f"names with `{TARGET}` or `{SOURCE}` if there are `langs`, and only then"
        raise_invalid(f"{where}: {MTDATA}", rule, entry[MTDATA])
    are_spelled = isinstance(entry.get("langs"), dict)
    for name in names:
        if not _is_open(name):
            for like in _names_like(name, choice.limit, where):
                yield like, choice.pair or ""
            continue
        for pair in choice.pairs(where):
            codes = []
            for lang in pair:
                is_given = are_spelled and lang in choice.langs
                codes.append(choice.langs[lang] if is_given else _long_code(lang, where))
            filled = name.replace(SOURCE, codes[0]).replace(TARGET, codes[1])
            for like in _names_like(filled, choice.limit, where):
                yield like, "-".join(pair)


def _is_open(name: str) -> bool:
    """Return whether a name stands for the data sets of several languages."""
    return SOURCE in name or TARGET in name


def _names_like(name: str, limit: int | None, where: str) -> list[str]:
    """Return a name, or those like one with `*` (UserError: none, or over `limit`)."""
    if "*" not in name:
        return [name]
    found = matching(name)
    if not found:
        raise UserError(
            f"`{where}: mtdata` has {name}, but no name in the index of mtdata is like it."
        )
    if limit is None or len(found) > limit:
        rule = f"at least {len(found)}, the number of data sets that are like {name}"
        raise_invalid(f"{where}: limit", rule, limit)
    return found


def _long_code(lang: str, where: str) -> str:
    """Return mtdata's code for a recipe's (UserError: there is none)."""
    try:
        return long_code(lang)
    except LookupError:
        raise_invalid(f"{where}: langs", "language codes, such as ha and pt_BR", lang)


def _parts(data_set: DataSet, where: str) -> list[Fields]:
    """Return a data set's entry, or one for each of several tables in an archive."""
    name = data_set.did
    addresses = data_set.addresses
    form = _expected_format(data_set, where)
    places = [place_of(address, data_set.filename) for address in addresses]
    members = data_set.in_paths
    is_by_side = form in ("moses", "sgm")
    if is_by_side and len({*addresses}) == 1 and len({*members}) == 1:
        raise UserError(
            f"`{where}: mtdata` has {name}, for which mtdata's index names the same file, "
            f"{members[0]}, for both languages: choose another data set, or give its `files`."
        )
    files = [f"{places[0]}{ARCHIVE}{member}" for member in members] or places
    about: Fields = {
        "pair": "-".join(data_set.langs),
        "format": form,
        "address": addresses,
        **_about(data_set),
    }
    if form == "tsv":
        columns = data_set.cols or (0, 1)
        about["fields"] = {"source": columns[0] + 1, "target": columns[1] + 1}
    named = name_of(name)
    if is_by_side or len(files) == 1:
        return [{"name": named, **about, "files": files}]
    parts = []
    for number, file in enumerate(files, 1):
        parts.append({"name": f"{named}.{number}", **about, "files": [file]})
    return parts


def _one_language(data_set: DataSet, pair: str, where: str) -> Fields:
    """Return the entry of text in the target language, to be back-translated."""
    name = data_set.did
    lang = data_set.langs[0]
    source, _, target = plain_pair(pair).partition("-")
    target = lang if target in OPEN else target
    if source in OPEN or recipe_code(target) != lang:
        rule = f"a pair that ends in {lang}, the language of {name}, such as en-{lang}"
        raise_invalid(f"{where}: pair", rule, pair)
    form = _expected_format(data_set, where)
    place = place_of(data_set.addresses[0], data_set.filename)
    members = data_set.in_paths
    column = (data_set.cols or (0,))[0]
    return {
        "name": name,
        "pair": f"{source}-{target}",
        "kind": BACK_TRANSLATED,
        "files": [f"mono/{name}.bt.{source}", f"mono/{name}.{target}"],
        "format": "moses",
        "fields": {"target": column + 1} if form == "tsv" else {},
        "text_of": f"{place}{ARCHIVE}{members[0]}" if members else place,
        "address": data_set.addresses,
        **_about(data_set),
    }


def _about(data_set: DataSet) -> Fields:
    """Return the fields about a data set's origin."""
    return {
        "cite": list(map(citation, data_set.cite)),
        "data_set": f"{MTDATA} {data_set.did}",
    }


def _expected_format(data_set: DataSet, where: str) -> str:
    """Return the format of a data set's reader (UserError: there is none)."""
    form = format_of(data_set)
    if form is None:
        raise UserError(
            f"`{where}: mtdata` has {data_set.did}, whose format "
            f"({data_set.in_ext or data_set.ext}) cannot be read: download it by `mtdata get`, and "
            "give its `files`."
        )
    return form


def format_of(data_set: DataSet) -> str | None:
    """Return the format of readers of a data set; None if there is no reader for it."""
    if len(data_set.langs) == 2 and len(data_set.cols or (0, 1)) == 1:
        return None  # a table for each language
    return _FORMATS.get(data_set.in_ext or _COMPRESSED.sub("", data_set.ext).split(".")[-1])


def _named_as(pair: str, pattern: str) -> str:
    """Return a pair with the pattern's codes; nothing if its languages are others."""
    codes = []
    for lang, wanted in zip(pair.split("-"), pattern.split("-"), strict=True):
        if wanted not in OPEN and recipe_code(wanted) != lang:
            return ""
        codes.append(lang if wanted in OPEN else wanted)
    return "-".join(codes)


def _oriented(about: Fields, pair: str, where: str) -> Fields:
    """Return an entry in the order of languages that the recipe gives.

    Raises `UserError` if the data set has other languages.
    """
    pattern = plain_pair(pair)
    if named := _named_as(about["pair"], pattern):
        return {**about, "pair": named}
    wanted = _named_as(reversed_pair(about["pair"]), pattern)
    if not wanted:
        either = f"{about['pair']} or {reversed_pair(about['pair'])}"
        rule = f"{either}, the languages of {about['name']}"
        raise_invalid(f"{where}: pair", rule, pair)
    turned = {**about, "pair": wanted}
    if len(about["files"]) == 2:
        turned["files"] = about["files"][::-1]
        turned["address"] = about["address"][::-1]
    if "fields" in about:
        sides = about["fields"]
        turned["fields"] = {"source": sides["target"], "target": sides["source"]}
    return turned
