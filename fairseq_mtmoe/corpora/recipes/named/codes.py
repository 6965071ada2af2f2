"""Language codes in mtdata's names.

They are those of ISO 639-3, some with a script or region (`eng`, `por_BR`).
"""

from functools import cache

from fairseq_mtmoe.corpora.recipes.codes import plain_code


@cache
def recipe_code(code: str) -> str:
    """Return a recipe's code for mtdata's: `ha` for `hau_Latn`, `pt_BR` for `por_BR`."""
    import langcodes

    language = langcodes.Language.get(code)
    usual_script = langcodes.Language.make(language.language).maximize().script
    subtags = str(language).split("-")
    if language.script == usual_script:
        subtags = [subtag for subtag in subtags if subtag != usual_script]
    return plain_code("_".join(subtags))


@cache
def long_code(code: str) -> str:
    """Return mtdata's code for a recipe's: `hau` for `ha`, `por_BR` for `pt_BR`.

    Raises `LookupError` if it is no language.
    """
    import langcodes

    language, *rest = code.split("_")
    return "_".join([langcodes.Language.get(language).to_alpha3(), *rest])


@cache
def is_same(code: str, other: str) -> bool:
    """Return whether two codes name one language and script: `sw` and `swh_Latn`."""
    import langcodes

    if code == other:
        return True
    try:
        first, second = map(langcodes.Language.get, (code, other))
    except ValueError:  # raised for malformed codes
        return False
    if first.maximize().script != second.maximize().script:
        return False
    distance: int = langcodes.tag_distance(str(first.language), str(second.language))
    return distance <= 1
