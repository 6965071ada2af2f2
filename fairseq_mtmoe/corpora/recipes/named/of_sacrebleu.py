"""Entries of a recipe that name a test set of sacreBLEU.

They become entries with files and addresses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairseq_mtmoe.core.errors import UserError, raise_invalid, shortened
from fairseq_mtmoe.corpora.recipes.named.entries import Fields, choice_of, place_of
from fairseq_mtmoe.corpora.recipes.schema import ARCHIVE, name_of

if TYPE_CHECKING:
    from sacrebleu.dataset.base import Dataset

SACREBLEU = "sacrebleu"  # key of entries that name a test set
# Formats of readers by the classes of test sets. Other classes have no reader.
_FORMATS = {
    "FakeSGMLDataset": "sgm",
    "IWSLTXMLDataset": "sgm",
    "PlainTextDataset": "moses",
    "WMTXMLDataset": "wmt",
}
_FIRST_REFERENCES = (["A"], ["refA"], ["A", ""])  # which the reader of WMT's XML takes, too


def of_sacrebleu(where: str, entry: Fields) -> list[Fields]:
    """Return an entry for each pair of the test set that an entry names.

    The entry's other fields are kept.

    Raises:
        UserError: sacreBLEU lacks the test set or the pair, or it cannot be read from one archive.
    """
    from sacrebleu.dataset import DATASETS

    name = str(entry[SACREBLEU])
    if name not in DATASETS:
        raise_invalid(f"{where}: sacrebleu", f"one of {shortened(list(DATASETS), name)}", name)
    rest = {key: value for key, value in entry.items() if key not in (SACREBLEU, "langs", "pair")}
    choice = choice_of(where, entry)
    pairs = map("-".join, choice.pairs(where))
    return [{**_test_set(DATASETS[name], pair, where), **rest} for pair in pairs]


def _test_set(data_set: Dataset, pair: str, where: str) -> Fields:
    """Return the entry of a test set for a language pair."""
    name = data_set.name
    if pair not in data_set.langpairs:
        pairs = shortened(list(data_set.langpairs), pair)
        raise_invalid(f"{where}: pair", f"one of the pairs of {name} ({pairs})", pair)
    form = _FORMATS.get(type(data_set).__name__)
    members = data_set.langpairs[pair]
    addresses = data_set.data or []
    is_first = data_set.kwargs.get("refs", ["A"]) in _FIRST_REFERENCES
    if form is None or len(addresses) > 1 or isinstance(members, dict) or not is_first:
        raise UserError(
            f"`{where}: sacrebleu` has {name}, which only sacreBLEU can take apart: write its text "
            f"by `sacrebleu -t {name} -l {pair} --echo src` and `--echo ref`, and give its `files`."
        )
    place = place_of(addresses[0])
    return {
        "name": name_of(f"{SACREBLEU}-{name}-{pair}"),
        "pair": pair,
        "role": "test",
        "format": form,
        "files": [f"{place}{ARCHIVE}{member}" for member in members[:2]],
        "address": addresses,
        "md5": data_set.md5 or [],
        "cite": [data_set.citation] if data_set.citation else [],
        "data_set": f"{SACREBLEU} {name}",
    }
