"""`mtmoe report`: what it writes, refuses, and keeps fresh."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairseq_mtmoe.analysis.report.gathering import Facts, Gatherer
from fairseq_mtmoe.cli import report
from fairseq_mtmoe.cli.report import command, keep_fresh
from fairseq_mtmoe.errors import UserError
from tests.helpers.evaluations import write_evaluation
from tests.helpers.run_logs import events_of_a_run, write_run


def reported(*arguments: object) -> str:
    result = CliRunner().invoke(command, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", events_of_a_run(pairs=2, validations=2))


def test_a_page_of_a_run_is_written_and_named(run, tmp_path):
    out = tmp_path / "pages" / "run.html"
    assert reported(run, out) == f"{out}\n"
    text = out.read_text()
    assert text.startswith("<!DOCTYPE html>") or text.lower().startswith("<!doctype html>")
    assert "en-ab" in text and "base_moe_tiny" in text
    before = out.read_bytes()
    with pytest.raises(UserError, match=r"a file that does not exist yet, or be given with `--overwrite`"):
        reported(run, out)
    assert out.read_bytes() == before
    reported(run, out, "--overwrite")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("RUN", "page.txt"), "a name that ends in .html"),
        (("nowhere", "page.html"), "There is no run log"),
        (("RUN", "RUN", "page.html"), "`RUN…` must be different runs"),
        (("RUN", "--scores", "a", "--scores", "b", "page.html"), "`--scores` must be given once for each of the 1 RUN"),
        (("RUN", "--scores", "nowhere", "page.html"), "must be a folder with scores.json"),
        (("RUN", "page.html", "--watch", "inf"), "`--watch` must be a number of seconds"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence_and_no_page(run, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        reported(*(run if argument == "RUN" else argument for argument in arguments))
    assert sentence in str(error.value)
    assert not (tmp_path / "page.html").exists()


def test_a_damaged_log_leaves_the_page_as_it_was(run, tmp_path):
    out = tmp_path / "page.html"
    reported(run, out)
    before = out.read_bytes()
    with open(run / "mtmoe.jsonl", "a") as log:
        log.write(json.dumps({"event": "train", "update": 2000, "wps": "fast"}) + "\n")
    with pytest.raises(UserError, match=r"Line \d+ of the run log .* must have null or a number .* as `wps`"):
        reported(run, out, "--overwrite")
    assert out.read_bytes() == before


def test_a_watched_page_is_made_anew_when_there_is_something_new(run, tmp_path, monkeypatch):
    pages: list[Facts] = []
    monkeypatch.setattr(report, "write_page", lambda facts, out: pages.append(facts))
    looks = iter(range(5))

    def sleep(seconds: float) -> None:
        assert seconds == 3
        look = next(looks)
        if look == 1:
            with open(run / "mtmoe.jsonl", "a") as log:
                log.write('{"event": "sparsified", "update": 7, "num_experts": 4}\n')
        if look == 3:
            raise KeyboardInterrupt

    keep_fresh(Gatherer([run]), tmp_path / "page.html", 3.0, sleep)
    assert [(page.watched, len(page.runs[0].sparsified)) for page in pages] == [(3.0, 1), (None, 1)]


def test_a_watched_log_that_is_damaged_for_a_moment_is_read_the_next_time(run, tmp_path, capsys):
    log, out, looks = run / "mtmoe.jsonl", tmp_path / "page.html", iter(range(5))
    whole = log.read_text()

    def sleep(seconds: float) -> None:
        look = next(looks)
        if look == 0:
            log.write_text(whole + '{"event": "train", "update": "x"}\n')
        elif look == 1:
            assert "not fresh: Line " in capsys.readouterr().err and not out.exists()
            log.write_text(whole)
        else:
            raise KeyboardInterrupt

    keep_fresh(Gatherer([run]), out, 1.0, sleep)
    assert out.exists()


def test_a_run_log_that_is_named_itself_is_shown_and_never_overwritten(run, tmp_path):
    log = (run / "mtmoe.jsonl").rename(tmp_path / "log.html")
    before = log.read_bytes()
    reported(log, tmp_path / "page.html")
    with pytest.raises(UserError, match=r"`OUT.html` must be another file than RUN `.*log.html`"):
        reported(log, log, "--overwrite")
    assert log.read_bytes() == before and "en-ab" in (tmp_path / "page.html").read_text()


def test_places_that_cannot_be_are_one_sentence(run, tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UserError, match="leads in a circle"):
        reported(tmp_path / "loop", tmp_path / "page.html")
    with pytest.raises(UserError, match="must be a folder that can be written to"):
        reported(run, tmp_path / "/".join(["deep"] * 1000) / "page.html")


def test_several_folders_of_scores_are_said_not_to_be_shown(run, tmp_path):
    for name in ("a", "b"):
        write_evaluation(run / "scores" / name, 0.3, sentences=10)
    (note,) = Gatherer([run]).gather().notes
    assert "there are 2 folders of them" in note
    assert Gatherer([run], [run / "scores" / "a"]).gather().notes == []


@pytest.mark.parametrize("layers", [{}, {"encoder.layers.1": [[0, 0], [0, 0]]}])
def test_experts_that_had_no_token_are_no_part_of_the_page(tmp_path, layers):
    event = {"event": "experts", "update": 5, "task_names": ["en-ab", "en-ac"], "layers": layers}
    (tmp_path / "mtmoe.jsonl").write_text(json.dumps(event) + "\n")
    assert Gatherer([tmp_path]).gather().runs[0].rows == []


def test_a_watched_page_of_a_run_that_vanishes_stays_as_it_was_and_is_not_watched(run, tmp_path, capsys):
    """What is wrong is said once, however often it is looked at."""
    out, gatherer, looks = tmp_path / "page.html", Gatherer([run]), iter(range(5))
    report.write_page(gatherer.gather(1.0), out)

    def sleep(seconds: float) -> None:
        look = next(looks)
        if look == 0:
            (run / "mtmoe.jsonl").unlink()
        elif look == 3:
            raise KeyboardInterrupt

    with pytest.raises(UserError, match="There is no run log"):
        keep_fresh(gatherer, out, 1.0, sleep)
    assert capsys.readouterr().err.count("not fresh") == 1
    assert "en-ab" in out.read_text() and '"watched":null' in out.read_text().replace(" ", "")
