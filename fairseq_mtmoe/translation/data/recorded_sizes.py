"""The shards of a data directory and their training sizes.

They are read from the `sizes.json` in every shard, which `mtmoe prepare corpora` writes:

    {"shards": ["shard0", "shard1"], "train": {"en-de": [1000000, 300000]}}

For each pair it has the sizes of the shards that have the pair, so that the other shards need not
be read. With back-translations, `"back-translated": {"en-de": 400000}` has their number in each
direction.
"""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Required

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.files import read_json, read_text
from fairseq_mtmoe.core.typed import at_least, fault, mapping
from fairseq_mtmoe.translation.data.file_names import indexed_sides

FILE_NAME = "sizes.json"
SPLIT = "train"  # the only split with shards
SYNTHETIC = "back-translated"
Count = Annotated[int, at_least(1)]
_RECORD: Any = mapping(
    {
        "shards": Required[list[str]],
        "train": Required[dict[str, list[Count]]],
        SYNTHETIC: dict[str, int],
    }
)


def _record(folder: str) -> dict[str, Any]:
    path = Path(folder) / FILE_NAME
    if not os.path.lexists(path):
        return {"shards": [], "train": {}}
    record: dict[str, Any] = read_json(path, "a record of sizes")
    if fault(record, _RECORD) is None:
        lengths = set(map(len, record["train"].values()))
        if 0 not in lengths and max(lengths, default=0) <= len(record["shards"]):
            return record
    raise UserError(
        f"`{path}` must have the names of `shards`, and for each pair in `train` the "
        "sentences of each shard; remove it to read sizes from the shards."
    )


def read_sizes(folders: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return each folder's training sizes, `{"en-de": 1000000, …}`.

    The result is empty unless one record has all folders.
    """
    record = _record(folders[0])
    shards = record["shards"]
    paths = list(map(Path, map(os.path.abspath, folders)))
    names = [path.name for path in paths]
    if shards == [""] and len(folders) == 1:
        names = shards
    elif len({path.parent for path in paths}) != 1 or not set(names) <= set(shards):
        return {}
    sizes_of_folders: dict[str, dict[str, int]] = {folder: {} for folder in folders}
    for pair, counts in record["train"].items():
        sizes = dict(zip(shards, counts, strict=False))
        for folder, name in zip(folders, names, strict=True):
            if name in sizes:
                sizes_of_folders[folder][pair] = sizes[name]
    return sizes_of_folders


def synthetic_shares(folder: str) -> dict[str, float]:
    """Return the share of back-translated pairs, for each direction that has some."""
    record = _record(folder)
    sizes = record["train"]
    shares = {}
    for direction, count in record.get(SYNTHETIC, {}).items():
        source, _, target = direction.partition("-")
        total = sum(sizes.get(direction) or sizes.get(f"{target}-{source}") or ())
        if total:
            shares[direction] = count / total
    return shares


def folders_in(data: str) -> str:
    """Return fairseq's data argument (UserError: it names no folders).

    It may be the name of a file with the argument.
    """
    if not os.path.isfile(data):
        return data
    content = read_text(data).strip()
    if not all(map(os.path.isdir, content.split(os.pathsep))):
        raise_invalid("data", "a directory, or a file with the paths of directories", data)
    return content


def with_shards(data: str) -> str:
    """Return fairseq's data argument, with a directory replaced by its shards.

    A record names the shards; without one, all that exist are taken.
    """
    if "://" in data:  # a URL, which fairseq does not inspect either
        return data
    return os.pathsep.join(itertools.chain.from_iterable(map(_shards, data.split(os.pathsep))))


def _shards(folder: str) -> list[str]:
    first = os.path.join(folder, "shard0")
    if not os.path.isdir(first) or indexed_sides(folder):
        return [folder]
    if named := list(filter(None, _record(first)["shards"])):
        return [os.path.join(folder, name) for name in named]
    numbered = (os.path.join(folder, f"shard{number}") for number in itertools.count())
    return list(itertools.takewhile(os.path.isdir, numbered))
