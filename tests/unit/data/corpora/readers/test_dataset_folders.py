import json

import pyarrow as arrow
import pytest
from pyarrow import parquet

from fairseq_mtmoe.errors import UserError
from tests.helpers.reading import corpus, found_in

ROWS = [{"en": f"house {number}", "de": f"Haus {number}"} for number in range(2500)]
PAIRS = [(number + 1, row["en"], row["de"]) for number, row in enumerate(ROWS)]


def table(rows, nested):
    return arrow.Table.from_pylist([{"id": 1, "translation": row} if nested else row for row in rows])


def write_stream(path, content):
    """As `Dataset.save_to_disk` writes it."""
    with arrow.OSFile(str(path), "wb") as file, arrow.ipc.new_stream(file, content.schema) as writer:
        writer.write_table(content, max_chunksize=700)


def write_file(path, content):
    with arrow.OSFile(str(path), "wb") as file, arrow.ipc.new_file(file, content.schema) as writer:
        writer.write_table(content, max_chunksize=700)


WRITERS = {
    "stream.arrow": write_stream,
    "file.arrow": write_file,
    "parquet": lambda path, t: parquet.write_table(t, path),
}


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("nested", [False, True])
def test_a_folder_in_several_files(tmp_path, form, nested):
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": []}))
    for part, rows in enumerate((ROWS[:1200], ROWS[1200:])):
        WRITERS[form](tmp_path / f"data-0000{part}-of-00002.{form.rpartition('.')[2]}", table(rows, nested))
    assert found_in(corpus(tmp_path)) == (PAIRS, [])
    (single,) = tmp_path.glob("data-00000*")
    prefix = "translation." if nested else ""
    fields = {"source": f"{prefix}en", "target": f"{prefix}de"}
    assert len(found_in(corpus(single, fields=fields))[0]) == 1200


def test_rows_without_a_text(tmp_path):
    rows = [{"en": "a", "de": "b"}, {"en": "a", "de": None}, {"en": " ", "de": "b"}, {"en": "a\0", "de": "b"}]
    parquet.write_table(table(rows, nested=True), tmp_path / "a.parquet")
    pairs, bad = found_in(corpus(tmp_path))
    assert pairs == [(1, "a", "b")]
    assert [(line.line, line.reason) for line in bad] == [(2, "untranslated"), (3, "empty"), (4, "nul")]


@pytest.mark.parametrize("form", WRITERS)
def test_a_cut_or_damaged_file_is_said(tmp_path, form):
    path = tmp_path / f"a.{form.rpartition('.')[2]}"
    WRITERS[form](path, table(ROWS, nested=False))
    whole = path.read_bytes()
    for size in range(8, len(whole), len(whole) // 5):
        path.write_bytes(whole[:size])
        pairs, bad = found_in(corpus(tmp_path))
        assert pairs == PAIRS[: len(pairs)]
        assert [line.reason for line in bad] in (["damaged"], ["truncated"])


def test_a_stream_that_is_cut_between_its_batches_is_said(tmp_path):
    content = table(ROWS, nested=False)
    with arrow.OSFile(str(tmp_path / "a.arrow"), "wb") as file, arrow.ipc.new_stream(file, content.schema) as writer:
        writer.write_table(content[:700])
        whole = file.tell()
    path = tmp_path / "a.arrow"
    path.write_bytes(path.read_bytes()[:whole])
    pairs, bad = found_in(corpus(tmp_path))
    assert pairs == PAIRS[:700] and [line.reason for line in bad] == ["truncated"]


HOUSE = arrow.array(["house"])
SAME = {
    "nothing": lambda rows: arrow.nulls(rows),
    "runs": lambda rows: arrow.RunEndEncodedArray.from_arrays(arrow.array([rows], arrow.int32()), HOUSE),
    "long": lambda rows: arrow.DictionaryArray.from_arrays([0] * 30_000, arrow.array(["b" * 1_000_000])),
}


@pytest.mark.parametrize("kind", SAME)
def test_rows_that_take_no_bytes_end_the_run(tmp_path, kind):
    """2³¹ of them in 280 bytes; and texts that are the same megabyte."""
    column = SAME[kind](2**31 - 1)
    batch = arrow.RecordBatch.from_arrays([column, column], ["en", "de"])
    with arrow.OSFile(str(tmp_path / "a.arrow"), "wb") as file, arrow.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(UserError, match=r"grows to more than 250 times|longer than 65536|MiB of memory"):
        found_in(corpus(tmp_path, is_evaluation=True))


def test_parquet_of_rows_that_take_no_bytes_ends_the_run(tmp_path):
    nothing = arrow.nulls(5_000_000)
    parquet.write_table(arrow.table({"en": nothing, "de": nothing}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"says that it has 5,000,000 rows"):
        found_in(corpus(tmp_path))


def test_what_is_no_data_set(tmp_path):
    with pytest.raises(UserError, match="must be a folder of Arrow or Parquet files, but has none"):
        found_in(corpus(tmp_path))
    (tmp_path / "train").mkdir()
    write_stream(tmp_path / "train" / "data.arrow", table(ROWS[:2], nested=False))
    with pytest.raises(UserError, match="give one of its splits: train"):
        found_in(corpus(tmp_path))
    with pytest.raises(UserError, match="must say under which keys fr and de are"):
        found_in(corpus(tmp_path / "train", source="fr"))
