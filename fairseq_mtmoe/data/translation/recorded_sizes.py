"""The shards of a data directory, and the number of training pairs in each by the `sizes.json` of every shard.

`mtmoe prepare corpora` writes it, such as `{"shards": ["shard0", "shard1"], "train": {"en-de": [1000000, 300000]}}`: by
pair the sizes of the shards that have it, in the order of `shards`, the names of their folders. So the sizes of the
whole data are known without a look into its other shards, which may be many and far away.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from fairseq_mtmoe.data.translation.file_names import indexed_sides
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_json

FILE_NAME = "sizes.json"
SPLIT = "train"  # the only one that has shards


def read_sizes(folders: Sequence[str]) -> dict[str, dict[str, int]]:
    """The training pairs of each of these folders, by language pair.

    Returns:
        for each folder `{"en-de": 1000000, …}`; nothing unless all folders are shards of one data directory that
        records its sizes.

    Raises:
        UserError: the record is not of the form above.
    """
    path = Path(folders[0]) / FILE_NAME
    if not os.path.lexists(path):
        return {}
    shards, sizes = _checked(path, read_json(path, "a record of sizes"))
    places = [os.path.split(os.path.abspath(folder)) for folder in folders]
    if shards == [""] and len(folders) == 1:
        numbers = [0]
    elif len({parent for parent, _ in places}) == 1 and all(name in shards for _, name in places):
        numbers = [shards.index(name) for _, name in places]
    else:
        return {}
    return {
        folder: {pair: of_pair[number] for pair, of_pair in sizes.items() if number < len(of_pair)}
        for folder, number in zip(folders, numbers, strict=True)
    }


def recorded_shards(folder: str) -> list[str]:
    """The names of the shards of the data directory that `folder` is a shard of; none where that is not recorded.

    Raises:
        UserError: the record is not of the form above.
    """
    path = Path(folder) / FILE_NAME
    if not os.path.lexists(path):
        return []
    shards, _ = _checked(path, read_json(path, "a record of sizes"))
    return [name for name in shards if name]


def _checked(path: Path, content: object) -> tuple[list[str], dict[str, list[int]]]:
    if isinstance(content, dict):
        shards, sizes = content.get("shards"), content.get(SPLIT)
        if (
            isinstance(shards, list)
            and all(isinstance(name, str) for name in shards)
            and isinstance(sizes, dict)
            and all(_is_sizes(of_pair, len(shards)) for of_pair in sizes.values())
        ):
            return shards, sizes
    raise UserError(
        f"`{path}` must have the names of `shards`, and for each pair in `train` the sentences of each shard;"
        " remove it, and sizes are read from the shards."
    )


def _is_sizes(value: object, shards: int) -> bool:
    return (
        isinstance(value, list) and 0 < len(value) <= shards and all(type(size) is int and size > 0 for size in value)
    )


FIRST = "shard0"


def with_shards(data: str) -> str:
    """fairseq's data argument, with the shards of a directory in the place of one that has nothing else.

    Those that the first one's `sizes.json` names, so that a missing one is missed; without it all that are there.

    Raises:
        UserError: `sizes.json` is not of its form.
    """
    if "://" in data:  # as fairseq: another store's, which nobody looks into
        return data
    return os.pathsep.join(itertools.chain.from_iterable(map(_shards, data.split(os.pathsep))))


def _shards(folder: str) -> list[str]:
    first = os.path.join(folder, FIRST)
    if not os.path.isdir(first) or indexed_sides(folder):
        return [folder]
    there = itertools.takewhile(os.path.isdir, (os.path.join(folder, f"shard{number}") for number in itertools.count()))
    return [os.path.join(folder, name) for name in recorded_shards(first)] or list(there)
