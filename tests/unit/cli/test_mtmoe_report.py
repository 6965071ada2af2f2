"""`mtmoe report`: what it writes, refuses, and keeps fresh."""

import time
from functools import partial
from unittest import mock

import pytest

from fairseq_mtmoe.analysis.report.gathering import Gatherer
from fairseq_mtmoe.cli import report
from fairseq_mtmoe.cli.report import keep_fresh
from fairseq_mtmoe.errors import UserError
from tests.helpers.evaluations import write_evaluation
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused
from tests.helpers.run_logs import events_of_a_run, write_run

reported = partial(mtmoe, "report")


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", events_of_a_run(pairs=2, validations=2))


def test_a_page_of_a_run_is_written_and_named_and_nothing_overwritten_that_should_stay(run, tmp_path):
    out = tmp_path / "pages" / "run.html"
    assert reported(run, out) == f"{out}\n"
    before = out.read_bytes()
    assert before.startswith(b"<!DOCTYPE html>") and b"en-ab" in before and b"base_moe_tiny" in before
    with refused("OUT.html", "--overwrite"):
        reported(run, out)
    assert out.read_bytes() == before
    reported(run, out, "--overwrite")
    log = (run / "mtmoe.jsonl").rename(tmp_path / "log.html")  # which may be named itself
    reported(log, tmp_path / "page.html")
    before = log.read_bytes()
    with refused("OUT.html", "log.html"):
        reported(log, log, "--overwrite")
    assert log.read_bytes() == before and "en-ab" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(("run", "page.txt"), None), (("run", "run", "page.html"), "RUN…"),
     (("run", "--scores", "a", "--scores", "b", "page.html"), "--scores"),
     (("run", "--scores", "nowhere", "page.html"), "nowhere"), (("run", "page.html", "--watch", "inf"), "--watch"),
     (("loop", "page.html"), None), (("run", "/".join(["deep"] * 1000) + "/page.html"), None)],
)  # fmt: skip
def test_what_cannot_be_shown_is_one_sentence_and_no_page(run, tmp_path, monkeypatch, arguments, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with refused(*filter(None, [name])):
        reported(*arguments)
    assert not (tmp_path / "page.html").exists()


def watch(gatherer, out, *steps):
    """What `--watch 1` does while each step happens between two looks, until it is interrupted."""
    calls = mock.Mock(side_effect=[*steps, KeyboardInterrupt])

    def sleep(seconds):
        assert seconds == 1
        calls()()

    keep_fresh(gatherer, out, 1.0, sleep)


def test_a_watched_page_is_made_anew_when_there_is_something_new(run, tmp_path, monkeypatch):
    pages = []
    monkeypatch.setattr(report, "write_page", lambda facts, out: pages.append(facts))
    log = run / "mtmoe.jsonl"
    more = log.read_text() + '{"event": "sparsified", "update": 7, "num_experts": 4}\n'
    watch(Gatherer([run]), tmp_path / "page.html", time.time, lambda: log.write_text(more), time.time)
    assert [(page.watched, len(page.runs[0].sparsified)) for page in pages] == [(1.0, 1), (None, 1)]


def test_a_watched_log_that_is_damaged_for_a_moment_is_read_the_next_time(run, tmp_path, capsys):
    log, out = run / "mtmoe.jsonl", tmp_path / "page.html"
    whole = log.read_text()

    def restore():
        assert "page not updated: Line " in capsys.readouterr().err and not out.exists()
        log.write_text(whole)

    watch(Gatherer([run]), out, lambda: log.write_text(whole + '{"event": "train", "update": "x"}\n'), restore)
    assert out.exists()


def test_a_watched_page_of_a_run_that_vanishes_stays_as_it_was_and_is_not_watched(run, tmp_path, capsys):
    out, gatherer = tmp_path / "page.html", Gatherer([run])
    report.write_page(gatherer.gather(1.0), out)
    with pytest.raises(UserError, match="There is no run log"):
        watch(gatherer, out, (run / "mtmoe.jsonl").unlink, time.time, time.time)
    assert capsys.readouterr().err.count("page not updated") == 1
    assert "en-ab" in out.read_text() and '"watched":null' in out.read_text().replace(" ", "")


def test_several_folders_of_scores_are_said_not_to_be_shown(run, tmp_path):
    for name in ("a", "b"):
        write_evaluation(run / "scores" / name, 0.3, sentences=10)
    (note,) = Gatherer([run]).gather().notes
    assert "it has 2 folders of scores" in note
    assert Gatherer([run], [run / "scores" / "a"]).gather().notes == []
