"""`mtmoe score`: a number for each pair of lines of two files."""

import pytest

from fairseq_mtmoe import load_translator
from fairseq_mtmoe.cli import _lines, _workers
from fairseq_mtmoe.core.errors import UserError
from tests.helpers.invoked import invoked
from tests.helpers.pretrained_translators import write_lines
from tests.helpers.refused import refused
from tests.helpers.translated_text import LIMIT, texts

SOURCES, TARGETS = ["bo\tda", "", *texts(8, 5)], ["ki bo", "", *texts(8, 6)]
LANGS = ("--from", "en", "--to", "aa", "--cpu")


@pytest.fixture
def model(text_data):
    return text_data / "sparse.pt"


@pytest.fixture
def files(tmp_path):
    return write_lines(tmp_path / "in.en", SOURCES), write_lines(tmp_path / "out.aa", TARGETS)


def score(*arguments):
    return invoked("score", *arguments).stdout.splitlines()


def test_files_have_the_scores_of_python_in_any_number_of_groups_and_processes(model, files, tmp_path, monkeypatch):
    tokens = load_translator(model, cpu=True).score_tokens(SOURCES, TARGETS, source="en", target="aa")
    wanted = [f"{sum((value for _, value in each), start=0.0):.4f}" for each in tokens]
    assert score(model, *files, *LANGS) == wanted and len({*wanted}) == len(wanted) and wanted[1] == "0.0000"
    monkeypatch.setattr(_lines, "GROUP", 4)
    monkeypatch.setattr(_workers, "cores", lambda: 2)
    # Sums of other batches differ by some millionths: enough to round the fourth digit the other way.
    close = pytest.approx([sum(value for _, value in each) for each in tokens], abs=6e-5)
    rows = score(model, *files, *LANGS, "--tsv", "--workers", 2, "--batch-size", 2)
    columns = [row.split("\t") for row in rows]
    assert [float(each[0]) for each in columns] == close
    assert [each[1:] for each in columns] == [
        [str(len(each)), source.replace("\t", " "), target]
        for each, source, target in zip(tokens, SOURCES, TARGETS, strict=True)
    ]
    out = tmp_path / "scores" / "out.txt"
    assert score(model, *files, *LANGS, "--out", out) == []
    assert [*map(float, out.read_text().splitlines())] == close
    with refused("--out", "--overwrite"):
        score(model, *files, *LANGS, "--out", out)
    assert score(model, *files, *LANGS, "--out", out, "--overwrite") == []


def test_files_that_cannot_be_scored_are_told_in_a_sentence_and_nothing_is_written(model, files, tmp_path):
    fewer, out = write_lines(tmp_path / "fewer", TARGETS[1:]), tmp_path / "scores.txt"
    for name, arguments in (
        ("fewer", (model, files[0], fewer, *LANGS)), ("none", (model, tmp_path / "none", files[1], *LANGS)),
        ("--to", (model, *files, *LANGS, "--to", "xx")), ("--out", (model, *files, *LANGS, "--out", files[0])),
    ):  # fmt: skip
        outs = [] if "--out" in arguments else ["--out", out]
        with refused(name):
            score(*arguments, *outs, *(["--overwrite"] if not outs else []))
    long = write_lines(tmp_path / "long", ["bo"] * 9 + ["ba. " * LIMIT])
    with pytest.raises(UserError, match=r"^Line 10 of `.*/long` must"):
        score(model, long, files[1], *LANGS, "--out", out)
    assert not out.exists() and files[0].read_text().startswith("bo\tda")
