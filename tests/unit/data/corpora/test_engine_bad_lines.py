"""What cannot be read on its way from raw files to a data directory: listed, counted, or the end of the run."""

import csv
import gzip
import shutil
from dataclasses import replace

import pytest

from fairseq_mtmoe.data.corpora.blocks import BAD_REASONS, BadLine, CorpusFiles
from fairseq_mtmoe.data.corpora.engine.bad_lines import LIST, BadLines, write_list
from fairseq_mtmoe.data.corpora.engine.state import CorpusState
from fairseq_mtmoe.data.corpora.findings import findings
from fairseq_mtmoe.errors import UserError
from tests.helpers.raw_corpora import Counting, change, entries, prepare_small, sentences, write_raw
from tests.helpers.refused import refused


def table(path):
    return list(csv.reader(path.read_text(encoding="utf-8").splitlines(), delimiter="\t"))


def noted(folder, *lines):
    """What is kept of bad lines: (file, line, reason), with how many lines it stands for as a fourth."""
    paths = (folder / "a.en", folder / "a.de")
    part = CorpusState(CorpusFiles("a", paths, "en", "de"))
    with BadLines(folder / "part.tsv", part) as bad:
        for place, line, reason, *lost in lines:
            bad.note(BadLine(str(paths[place]), line, reason, 'tab\t"quoted"', *lost))
    corpora = []
    for name, names in (("first", ("x", "y")), ("second", ("in/z", "u!v"))):
        corpora.append(replace(part, files=replace(part.files, name=name, names=names)))
    write_list(folder, corpora)
    return part


def test_every_line_is_listed_those_that_follow_each_other_in_a_row(tmp_path):
    noted(
        tmp_path, (0, 1, "empty"), (0, 2, "empty"), (0, 3, "nul"), (1, 4, "nul"), (1, 6, "nul"), (0, 7, "untranslated"),
        (0, 9, "unpaired", 50), (0, 59, "unpaired"), (1, 70, "truncated", 0), (1, 70, "truncated", 0),
    )  # fmt: skip
    head, *rows = table(tmp_path / LIST)
    assert head == ["corpus", "file", "line", "lines", "reason", "excerpt"]
    assert {row[-1] for row in rows} == {'tab\t"quoted"'}
    expected = [
        ("x", 1, 2, "empty"), ("x", 3, 1, "nul"), ("y", 4, 1, "nul"), ("y", 6, 1, "nul"), ("x", 9, 51, "unpaired"),
        ("y", 70, 0, "truncated"), ("y", 70, 0, "truncated"),
    ]  # fmt: skip
    assert [(row[1], int(row[2]), int(row[3]), row[4]) for row in rows if row[0] == "first"] == expected
    assert [row[1] for row in rows if row[0] == "second"][:3] == ["in/z", "in/z", "u!v"]


def test_nothing_bad_is_no_list_and_samples_are_of_every_reason(tmp_path):
    part = noted(tmp_path, *((0, line, "untranslated") for line in range(1, 100)))
    assert part.bad == {"untranslated": 99} and [sample[1] for sample in part.bad_samples] == [1, 2, 3, 4, 5]
    assert not (tmp_path / LIST).exists()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A data directory of corpora with each kind of fault, salvaged."""
    folder = tmp_path_factory.mktemp("faults")
    raw = folder / "raw"
    write_raw(raw)
    more = [f"{en}\t{de}" for en, de in zip(sentences("more", 400), sentences("more de", 400, "de"), strict=True)]
    lines = ["en\tde", *more[:9], "one column", *more[9:]]
    (raw / "in").mkdir()
    (raw / "in" / "cut.tsv.gz").write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0)[:-500])
    for lang, more in (("en", b"caf\xe9 \xff\n\nlonger\nlonger\n"), ("et", b"kohv\nja\n")):
        with open(raw / f"train-et-0.{lang}", "ab") as file:
            file.write(more)
    cut = {"name": "cut", "pair": "en-de", "role": "train", "files": ["in/cut.tsv.gz"]}
    change(raw / "recipe.yaml", corpora=[*entries(raw), cut])
    return folder, prepare_small(raw, folder / "data", on_bad_line="salvage", allow_unequal=True)


def test_lines_in_are_lines_out_and_lines_listed(made):
    folder, report = made
    _, *rows = table(folder / "data" / LIST)
    assert [row[:5] for row in rows] == [
        ["train-et-0", "train-et-0.en", "55", "1", "encoding"],
        ["train-et-0", "train-et-0.en", "56", "1", "empty"],
        ["train-et-0", "train-et-0.en", "57", "2", "unequal"],
        ["cut", "in/cut.tsv.gz", "11", "1", "columns"],
        ["cut", "in/cut.tsv.gz", rows[4][2], rows[4][3], "truncated"],
    ]
    for name, lines in {"train-et-0": 58, "cut": int(rows[4][2]) - 2 + int(rows[4][3])}.items():
        corpus = report["corpora"][name]
        listed = sum(int(row[3]) for row in rows if row[0] == name)
        assert corpus["read"] + listed == lines and sum(corpus["bad"].values()) == listed
    assert report["corpora"]["cut"]["files"] == ["in/cut.tsv.gz"]
    assert {"encoding", "empty", "unequal"} == {one[2] for one in report["corpora"]["train-et-0"]["bad_samples"]}
    said = " ".join(findings(report))
    assert "cut (en-de): a file could not be read to its end (truncated)" in said
    assert "train-et-0 (en-et): train-et-0.en has 58 lines, its translation 56; only the first 56 of" in said


def test_what_is_up_to_date_depends_on_what_may_be_left_out(made, tmp_path):
    folder, _ = made
    workers = Counting()
    assert prepare_small(folder / "raw", folder / "data", workers, on_bad_line="salvage", allow_unequal=True) is None
    for options, name in (
        ({"on_bad_line": "drop", "allow_unequal": True}, "cut.tsv.gz"),
        ({"on_bad_line": "stop", "allow_unequal": True}, "train-et-0.en"),
        ({"on_bad_line": "salvage"}, "train-et-0.en"),
    ):
        with refused(name):
            prepare_small(folder / "raw", folder / "data", workers, **options)
    assert not workers.done
    shutil.rmtree(folder / "data")  # nor is anything else salvaged of what an earlier run did
    with pytest.raises(UserError, match=BAD_REASONS["truncated"]):
        prepare_small(folder / "raw", folder / "data", workers, on_bad_line="drop", allow_unequal=True)
    assert not (folder / "data").exists()


def test_a_test_set_keeps_its_lines_without_text(tmp_path):
    raw = tmp_path / "a!folder" / "raw"  # `!` is what stands before an archive's member, too
    write_raw(raw)
    lines = (raw / "test-de.en").read_text().splitlines()
    (raw / "test-de.en").write_text("\n".join(["", *lines[1:3], "", *lines[4:]]) + "\n")
    prepare_small(raw, tmp_path / "data", on_bad_line="stop")
    assert (tmp_path / "data" / "shard0" / "raw" / "test.en-de.en").read_text() == (raw / "test-de.en").read_text()
    assert not (tmp_path / "data" / LIST).exists()


def test_a_test_set_loses_no_line(raw, tmp_path):
    for name, line in (("test-de.en", b"\xff\n"), ("test-de.de", b"nine\n")):
        with open(raw / name, "ab") as file:
            file.write(line)
    for on_bad_line in ("stop", "drop", "salvage"):
        with pytest.raises(UserError, match=r"test-de\.en` .* unit 9 cannot be used: .* no line of .* is left out"):
            prepare_small(raw, tmp_path / "data", on_bad_line=on_bad_line)
