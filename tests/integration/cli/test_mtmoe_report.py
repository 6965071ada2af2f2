"""`mtmoe report`: what it writes, refuses, and keeps fresh."""

import importlib.util
import time
from functools import partial
from unittest import mock

import pytest
import torch

from fairseq_mtmoe.cli.report import checkpoints_of, keep_fresh, write_page
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.report.charts.models import task_gates
from fairseq_mtmoe.report.run_log import FILE_NAME, RunLog
from tests.helpers.figure_logs import benchmark, translation
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused
from tests.helpers.run_logs import events_of_a_run, write_run

reported = partial(mtmoe, "report")
GATES = {f"encoder.layers.{block}.moe.gate.weight": torch.randn(2, 4, 8) for block in range(2)}


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", events_of_a_run(pairs=2, validations=2))


def write_checkpoint(run, name="checkpoint_last.pt", **weights):
    torch.save({"cfg": {"model": {"_name": "mt_tag", "task_names": "cola,rte"}}, "model": weights}, run / name)
    return run


def test_a_page_of_a_run_is_written_and_named_and_nothing_overwritten_that_should_stay(run, tmp_path):
    out = tmp_path / "pages" / "run.html"
    assert reported(run, out) == f"{out}\n"
    before = out.read_bytes()
    assert before.startswith(b"<!DOCTYPE html>") and b"en-ab" in before and b"base_moe_tiny" in before
    with refused("OUT.html", "--overwrite"):
        reported(run, out)
    assert out.read_bytes() == before
    reported(run, out, "--overwrite")


def test_what_cannot_be_shown_is_one_sentence_and_no_page(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, name in (
        (("run", "page.txt"), "OUT.html"), (("run", "run", "page.html"), "RUN…"),
        (("run", "--scores", "a", "--scores", "b", "page.html"), "--scores"),
        (("run", "--scores", "nowhere", "page.html"), "nowhere"), (("run", "page.html", "--watch", "inf"), "--watch"),
        (("run", "--png", "pictures", "--watch", "5"), "--watch"),
    ):  # fmt: skip
        with refused(name):
            reported(*arguments)
        assert not (tmp_path / "page.html").exists()


def test_pictures_of_every_kind_of_event_and_of_several_runs(tmp_path):
    run = write_run(tmp_path / "run", translation())
    embeddings = {"encoder.task_embeddings.weight": torch.randn(2, 8)}
    write_checkpoint(run, **GATES, **embeddings)
    names = ["perplexity", "pairs", "training", "sampling", "selection", "experts", "expert_map", "balance",
             "gate_movement", "sources", "speed", "gates", "embeddings"]  # fmt: skip
    folder = tmp_path / "pictures"
    assert reported(run, "--png", folder).splitlines() == [f"{name}: {folder}/{name}.png" for name in names]
    assert all((folder / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in names)
    runs = [write_run(tmp_path / name, benchmark()) for name in ("a", "b")]
    reported(*runs, tmp_path / "page.html", "--png", tmp_path / "both")
    assert {path.name for path in (tmp_path / "both").iterdir()} == {"metrics.png", "metrics_minutes.png"}
    assert "Metrics in validation over minutes" in (tmp_path / "page.html").read_text()


def test_a_folder_without_a_log_a_log_without_numbers_and_a_node_without_altair(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="There is no run log"):
        reported(tmp_path, "--png", tmp_path / "pictures")
    with pytest.raises(UserError, match="none` does not exist"):
        reported(tmp_path / "none", tmp_path / "page.html")
    RunLog(tmp_path / "runs" / "a" / FILE_NAME).write("run")
    with pytest.raises(UserError, match=f"is a folder of runs; .*, such as `{tmp_path}/runs/a`"):
        reported(tmp_path / "runs", tmp_path / "page.html")
    RunLog(tmp_path / FILE_NAME).write("run", arch="base_moe")
    with pytest.raises(UserError, match="no values to draw yet"):
        reported(tmp_path, "--png", tmp_path / "pictures")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "altair" else find_spec(name))
    with refused("pip install altair"):
        reported(tmp_path, "--png", tmp_path / "pictures")
    assert not (tmp_path / "pictures").exists()


def test_gates_are_read_from_the_best_checkpoint_or_the_last(run):
    write_checkpoint(run, **GATES)
    assert list(task_gates(checkpoints_of([run])["run"])) == ["encoder.layers.0", "encoder.layers.1"]
    (run / "checkpoint_last.pt").rename(run / "checkpoint_best.pt")
    (run / "checkpoint_last.pt").write_bytes(b"no checkpoint")
    assert list(checkpoints_of([run])) == ["run"]
    (run / "checkpoint_best.pt").unlink()
    assert checkpoints_of([run]) == {}


def watch(run, out, *steps):
    """What `--watch 1` does while each step happens between two looks, until it is interrupted."""
    calls = mock.Mock(side_effect=[*steps, KeyboardInterrupt])

    def sleep(seconds):
        assert seconds == 1
        calls()()

    keep_fresh(partial(write_page, [run], (), {}, out), 1.0, sleep)


def test_a_watched_page_shows_new_events_and_stops_loading_itself_again(run, tmp_path):
    log, out = run / "mtmoe.jsonl", tmp_path / "page.html"
    write_page([run], (), {}, out, 1.0)
    assert 'http-equiv="refresh"' in out.read_text()
    more = log.read_text() + '{"event": "valid", "update": 7777, "all": {"ppl": 3}}\n'
    watch(run, out, lambda: log.write_text(more))
    assert "7,777" in out.read_text() and 'http-equiv="refresh"' not in out.read_text()


def test_a_watched_log_that_is_damaged_for_a_moment_is_read_the_next_time(run, tmp_path, capsys):
    log, out = run / "mtmoe.jsonl", tmp_path / "page.html"
    whole = log.read_text()

    def restore():
        assert "page not updated: Line " in capsys.readouterr().err and not out.exists()
        log.write_text(whole)

    watch(run, out, lambda: log.write_text(whole + '{"event": "train", "update": "x"}\n'), restore)
    before = out.read_text()
    with pytest.raises(UserError, match="There is no run log"):
        watch(run, out, log.unlink, time.time, time.time)
    assert capsys.readouterr().err.count("page not updated") == 1 and out.read_text() == before
