"""Matching of corpora's languages with a model's.

A corpus' `en` is a model's `eng_Latn`, `en_XX` or `en`.

By BCP 47 and the tables of `langcodes`, language and script must agree; `sw` matches its members,
such as `swh`.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import combinations

import langcodes

from fairseq_mtmoe.core.errors import UserError, nearest, raise_invalid, shortened, unknown_language

_NO_COUNTRY = "_XX"  # in mBART's `en_XX`


def codes_of_model(
    langs: Iterable[str], model_codes: Collection[str], choices: Mapping[str, str]
) -> dict[str, str]:
    """Return the model's code for each language of a text.

    `model_codes` are the model's codes, and `choices` are the user's.

    Raises:
        UserError: the model lacks a language or has several matches for it, or two languages get
            the same code.
    """
    langs = set(langs)
    for lang, code in choices.items():
        if lang not in langs:
            rule = f"a list of languages of the text ({shortened(sorted(langs), lang)})"
            raise_invalid("--codes", rule, f"{lang}={code}")
        if code not in model_codes:
            raise_invalid(
                "--codes",
                f"a list with codes of the model, such as {lang}={nearest(code, model_codes)}",
                code,
            )
    tags = dict(zip(model_codes, map(_tag, model_codes), strict=True))
    codes = {}
    for lang in sorted(langs):
        if choice := choices.get(lang):
            codes[lang] = choice
        elif lang in model_codes:
            codes[lang] = lang
        else:
            codes[lang] = _match(lang, tags)
    for (lang, code), (other, other_code) in combinations(codes.items(), 2):
        if code == other_code:
            raise UserError(
                "`--codes` must give each language a different code,"
                f" but {lang} and {other} are {code}."
            )
    return codes


def _match(lang: str, tags: Mapping[str, str]) -> str:
    tag = _tag(lang)
    distances = {}
    for code, other in tags.items():
        if _language(other) == _language(tag):
            distances[code] = langcodes.tag_distance(tag, other)
    if not distances:
        raise unknown_language("--codes", lang, tags)
    closest = [code for code in distances if distances[code] == min(distances.values())]
    if len(closest) > 1:
        raise UserError(
            f"`--codes` must name the model's code for {lang}, as in {lang}=CODE;"
            f" the model has {', '.join(closest)}."
        )
    return closest[0]


def _tag(code: str) -> str:
    """Return a code as a BCP 47 tag."""
    return code.removesuffix(_NO_COUNTRY).replace("_", "-")


def _language(tag: str) -> tuple[str, str] | str:
    """Return language and script of a tag; the tag itself if it is not valid."""
    try:
        full = langcodes.Language.get(langcodes.standardize_tag(tag, macro=True)).maximize()
    except ValueError:  # raised by `langcodes` for malformed tags
        return tag
    return full.language or tag, full.script or ""
