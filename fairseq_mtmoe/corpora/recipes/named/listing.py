"""Lists of an index's data sets for some languages."""

from __future__ import annotations

from collections.abc import Sequence

from fairseq_mtmoe.core.errors import raise_invalid
from fairseq_mtmoe.corpora.recipes.codes import CODE
from fairseq_mtmoe.corpora.recipes.named.codes import recipe_code
from fairseq_mtmoe.corpora.recipes.named.mtdata_index import between
from fairseq_mtmoe.corpora.recipes.named.of_mtdata import format_of

Row = tuple[str, str, str, str]  # name, pair, format or description, address


def codes_of(langs: Sequence[str]) -> tuple[str, ...]:
    """Return a recipe's codes of languages, each once (UserError: fewer than two)."""
    codes = tuple(dict.fromkeys(map(recipe_code, langs)))
    if len(codes) < 2 or not all(map(CODE.fullmatch, codes)):
        raise_invalid("--langs", "codes of at least two languages, such as en,ha", ",".join(langs))
    return codes


def of_mtdata(langs: tuple[str, ...]) -> list[Row]:
    """Return the data sets of mtdata between these languages, in the index's order."""
    rows = []
    for data_set in between(langs):
        form = format_of(data_set) or "cannot be read"
        rows.append((data_set.did, "-".join(data_set.langs), form, data_set.addresses[0]))
    return rows


def of_sacrebleu(langs: Sequence[str]) -> list[Row]:
    """Return the test sets of sacreBLEU between these languages."""
    from sacrebleu.dataset import DATASETS

    rows = []
    for name, data_set in DATASETS.items():
        for pair in data_set.langpairs:
            if {*pair.split("-")} <= {*langs}:
                rows.append((name, pair, data_set.description or "", (data_set.data or [""])[0]))
    return rows
