"""Tables of Arrow and Parquet, and folders of them as Hugging Face's `datasets` writes."""

import pyarrow
import pytest
from pyarrow import ipc, parquet

from fairseq_mtmoe.corpora.recipes.from_yaml import load_recipe
from tests.helpers.reading import found_in, told, written
from tests.helpers.refused import refused

ROWS = [{"translation": {"en": "house", "de": "Haus"}}, {"translation": {"en": "tree", "de": None}}]


def content(kind, table):
    """The bytes of a table in a file of this kind."""
    out = pyarrow.BufferOutputStream()
    if kind == "parquet":
        parquet.write_table(table, out)
    else:
        with (ipc.new_stream if kind == "stream" else ipc.new_file)(out, table.schema) as writer:
            writer.write_table(table)
    return out.getvalue().to_pybytes()


@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_tables_of_each_kind(tmp_path, kind):
    packed = content(kind, pyarrow.Table.from_pylist(ROWS[:1]))
    assert found_in(written(tmp_path, packed)) == ([(1, "house", "Haus")], [])
    with refused("a", first=False):
        found_in(written(tmp_path, packed[: len(packed) // 2]))
    assert found_in(written(tmp_path, content(kind, pyarrow.Table.from_pylist(ROWS).slice(0, 0)))) == ([], [])


def test_rows_without_text(tmp_path):
    table = pyarrow.Table.from_pylist([{"translation": None}, *ROWS])
    pairs, bad = told(written(tmp_path, content("parquet", table)))
    assert pairs == [(2, "house", "Haus")]
    assert [(line, reason) for _, line, reason in bad] == [(1, "keys"), (3, "untranslated")]
    numbers = pyarrow.table({"en": [1], "de": [2]})
    with refused("fields"):
        found_in(written(tmp_path, content("parquet", numbers)))


def test_a_folder_has_the_tables_of_one_split(tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("corpora: [{datasets: set/train, pair: en-de}]\n")
    folder = tmp_path / "set" / "train"
    folder.mkdir(parents=True)
    for name in ("data-00000.arrow", "data-00001.arrow", "cache-0123.arrow", "state.json"):  # the cache is of `map`
        (folder / name).write_bytes(content("stream", pyarrow.Table.from_pylist(ROWS)))
    found = load_recipe(recipe).found_in(tmp_path).corpora
    assert [corpus.files for corpus in found] == [["set/train/data-00000.arrow"], ["set/train/data-00001.arrow"]]
    recipe.write_text("corpora: [{datasets: set, pair: en-de}]\n")
    with refused("set"):
        load_recipe(recipe).found_in(tmp_path)
