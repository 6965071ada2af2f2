"""Language codes in mtdata's names.

They are those of ISO 639-3, some with a script or region (`eng`, `por_BR`).
"""

from functools import cache

from fairseq_mtmoe.corpora.recipes.codes import plain_code


@cache
def recipe_code(code: str) -> str:
    """Return a recipe's code for mtdata's: `ha` for `hau`, `pt_BR` for `por_BR`."""
    import langcodes

    tag: str = langcodes.standardize_tag(code)
    return plain_code(tag.replace("-", "_"))


@cache
def long_code(code: str) -> str:
    """Return mtdata's code for a recipe's: `hau` for `ha`, `por_BR` for `pt_BR`."""
    import langcodes

    language, *rest = code.split("_")
    return "_".join([langcodes.Language.get(language).to_alpha3(), *rest])
