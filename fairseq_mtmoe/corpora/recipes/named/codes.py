"""Language codes in mtdata's names.

They are those of ISO 639-3, some with a script or region (`eng`, `por_BR`).
"""

from functools import cache

from fairseq_mtmoe.corpora.recipes.codes import plain_code


@cache
def recipe_code(code: str) -> str:
    """Return a recipe's code for any code of a language.

    It is `ha` for `hau` and `hau_Latn`, `sw` for `swa` and `swh`, and `pt_BR` for `por_BR`. Texts
    that are no code are returned unchanged.
    """
    from langcodes import Language

    try:
        tag = Language.get(code)
    except ValueError:
        return code
    language = tag.prefer_macrolanguage().language or ""
    if language == "no":  # Norwegian has two written languages, nb and nn
        language = tag.language or ""
    usual_script = Language.get(language).maximize().script
    script = tag.script if tag.script != usual_script else None
    known = "tl" if language == "fil" else language
    return plain_code("_".join(filter(None, (known, script, tag.territory))))


@cache
def long_code(code: str) -> str:
    """Return mtdata's code for a recipe's: `hau` for `ha`, `por_BR` for `pt_BR`.

    Raises `LookupError` if it is no language.
    """
    import langcodes

    language, *rest = code.split("_")
    return "_".join([langcodes.Language.get(language).to_alpha3(), *rest])
