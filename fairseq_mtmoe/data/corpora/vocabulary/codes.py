"""Which of a model's languages the languages of corpora are: `en` is `eng_Latn`, `en_XX` or `en`, as it calls them.

By BCP 47 and the tables of `langcodes`: one language in one script, where `sw` stands for its parts, such as `swh`.
"""

from collections.abc import Collection, Iterable, Mapping

import langcodes

from fairseq_mtmoe.errors import UserError, nearest, raise_invalid

_NO_COUNTRY = "XX"  # mBART's `en_XX`


def codes_of_model(langs: Iterable[str], known: Collection[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the model's code of each language; `known` are its codes, and `given` are a user's choices.

    Raises a `UserError` for a language that the model does not have, or may have as several, and for two that are one.
    """
    langs = set(langs)
    for lang, code in given.items():
        if lang not in langs:
            raise_invalid("--codes", f"a list of languages of the text ({', '.join(sorted(langs))})", f"{lang}={code}")
        if code not in known:
            raise_invalid("--codes", f"a list with codes of the model, such as {lang}={nearest(code, known)}", code)
    tags = {code: _tag(code) for code in known}
    found = {lang: given.get(lang) or (lang if lang in known else _match(lang, tags)) for lang in sorted(langs)}
    for lang, code in found.items():
        if other := next((one for one in found if one != lang and found[one] == code), None):
            raise UserError(
                f"`--codes` must give languages of the text different codes, but {other} and {lang} are {code}."
            )
    return found


def _match(lang: str, tags: Mapping[str, str]) -> str:
    tag = _tag(lang)
    same = [code for code, other in tags.items() if _language(other) == _language(tag)]
    distances = {code: langcodes.tag_distance(tag, tags[code]) for code in same}
    closest = [code for code in same if distances[code] == min(distances.values())]
    if len(closest) == 1:
        return closest[0]
    if closest:
        why = f"the model has it as {', '.join(closest)}"
    else:
        near = min(tags, key=lambda code: (_distance(tag, tags[code]), code != nearest(lang, tags)))
        why = f"no language of the model is called so; the nearest is {near}, and `mtmoe extend` adds one"
    raise UserError(f"`--codes` must say which language of the model {lang} is, as in {lang}=CODE: {why}.")


def _tag(code: str) -> str:
    """A code as a tag of BCP 47."""
    parts = code.split("_")
    return "-".join(part for part in parts if part != _NO_COUNTRY)


def _language(tag: str) -> tuple[str, str] | str:
    """The language and its script; the tag itself where it is none of BCP 47."""
    try:
        full = langcodes.Language.get(langcodes.standardize_tag(tag, macro=True)).maximize()
    except ValueError:  # of `langcodes`, of which the error for a malformed tag is one
        return tag
    return full.language or tag, full.script or ""


def _distance(tag: str, other: str) -> int:
    try:
        return int(langcodes.tag_distance(tag, other))
    except ValueError:
        return 1000
