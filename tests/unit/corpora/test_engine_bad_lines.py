"""What cannot be read on its way from raw files to a data directory: listed, counted, or the end of the run."""

import csv
import gzip

from fairseq_mtmoe.corpora.engine.state import BAD_LINES
from tests.helpers.raw_corpora import Counting, change, entries, prepare_small, sentences, write_raw


def test_lines_in_are_lines_out_and_lines_listed(raw, tmp_path):
    more = [f"{en}\t{de}" for en, de in zip(sentences("more", 40), sentences("more de", 40, "de"), strict=True)]
    lines = ["en\tde", *more[:9], "one\"column", *more[9:], *["only\t"] * 10, "-\tabsent"]
    (raw / "in").mkdir()
    (raw / "in" / "more.tsv.gz").write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    for lang, text in (("en", b"caf\xe9 \xff\n\n"), ("et", b"kohv\nja\n")):
        with open(raw / f"train-et-0.{lang}", "ab") as file:
            file.write(text)
    corpus = {"name": "more", "pair": "en-de", "role": "train", "files": ["in/more.tsv.gz"]}
    corpus["fields"] = {"source": "en", "target": "de", "absent": "-"}
    change(raw / "recipe.yaml", corpora=[*entries(raw), corpus])
    report = prepare_small(raw, tmp_path / "data")
    listed = (tmp_path / "data" / BAD_LINES).read_text(encoding="utf-8").splitlines()
    head, *rows = csv.reader(listed, delimiter="\t")
    assert head == ["corpus", "file", "line", "reason", "excerpt"]
    assert [row[:4] for row in (rows[0], *rows[-2:])] == [
        ["more", "in/more.tsv.gz", "11", "columns"],
        ["train-et-0", "train-et-0.en", "55", "encoding"],
        ["train-et-0", "train-et-0.en", "56", "empty"],
    ]
    assert rows[0][4] == 'one"column'
    for name, number in {"train-et-0": 56, "more": len(lines) - 1}.items():
        made = report["corpora"][name]
        number -= made["bad"].pop("untranslated", 0)  # which is no fault
        bad = sum(row[0] == name for row in rows)
        assert made["read"] + bad == number and sum(made["bad"].values()) == bad
    samples = report["corpora"]["more"]["bad_samples"]
    assert {reason: len(lines) for reason, lines in samples.items()} == {"columns": 1, "empty": 5, "untranslated": 1}
    workers = Counting()
    assert prepare_small(raw, tmp_path / "data", workers) is None and not workers.done


def test_a_test_set_keeps_its_lines_without_text(tmp_path):
    raw = tmp_path / "a!folder" / "raw"  # `!` is what stands before an archive's member, too
    write_raw(raw)
    lines = (raw / "test-de.en").read_text().splitlines()
    (raw / "test-de.en").write_text("\n".join(["", *lines[1:3], "", *lines[4:]]) + "\n")
    prepare_small(raw, tmp_path / "data")
    assert (tmp_path / "data" / "shard0" / "raw" / "test.en-de.en").read_text() == (raw / "test-de.en").read_text()
    assert not (tmp_path / "data" / BAD_LINES).exists()
