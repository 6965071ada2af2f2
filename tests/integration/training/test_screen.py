"""`--log-format rich`: progress, tables of validations, and the log in a file."""

import io
import logging
import time
from types import SimpleNamespace

import pytest
from fairseq.logging import metrics, progress_bar
from rich.console import Console

from fairseq_mtmoe import register
from fairseq_mtmoe.core.protocols import TrainingTask
from fairseq_mtmoe.core.tiers import TIERS
from fairseq_mtmoe.training import screen
from tests.helpers.commands import train

register()


def grouped(*names, pairs=()):
    """A task with groups of these names."""
    task = TrainingTask()
    task.lang_pairs = list(pairs)
    task.groups = lambda: [SimpleNamespace(name=name) for name in names]
    return task


@pytest.fixture
def shown(monkeypatch):
    """A screen without a terminal, and a function that says what is on it."""
    text = io.StringIO()
    own = screen.Screen(Console(file=text, width=100))
    cfg = SimpleNamespace(optimization=SimpleNamespace(max_update=100, max_epoch=5))
    # What is asked of a trainer: its options, its updates, and its task's groups.
    own.trainer = SimpleNamespace(cfg=cfg, task=grouped(*TIERS, pairs=["en-fr", "en-de"]), done=0)
    own.trainer.get_num_updates = lambda: own.trainer.done
    monkeypatch.setattr(screen, "_screen", own)
    monkeypatch.setattr(screen, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(progress_bar.logger, "level", logging.INFO)
    return own, text.getvalue


def make_bar(items, **kwargs):
    return progress_bar.progress_bar(items, log_format="rich", log_interval=2, **kwargs)


def test_the_time_left_is_that_of_updates_and_validations_so_far(shown, monkeypatch):
    own, text = shown
    clock = SimpleNamespace(now=time.monotonic())
    monkeypatch.setattr(screen, "time", SimpleNamespace(monotonic=lambda: clock.now))
    own.trainer.cfg.optimization.max_update = own.trainer.done = 10  # by an earlier process
    own.trainer.cfg.optimization.max_update += 30
    for epoch in (1, 2):
        for _ in make_bar([0] * 10, epoch=epoch):
            clock.now += 2
            own.trainer.done += 1
        clock.now += 100
    lines = [line for line in text().splitlines() if "left" in line]
    assert lines[8] == "epoch 1: 19 of 40 updates, 0:00:42 left"
    assert lines[9] == "epoch 2: 20 of 40 updates, 0:04:00 left"  # 20 updates, as 10 took 120 seconds


def test_the_first_updates_are_shown_with_their_figures_before_the_first_log_interval(shown, monkeypatch):
    own, text = shown
    monkeypatch.setattr(screen, "SECONDS_BETWEEN_LINES", 1e9)
    metrics.reset()
    for loss in make_bar([9.0, 8.0, 7.0, 6.0], epoch=1):
        with metrics.aggregate("train_inner"):
            metrics.log_scalar("loss", loss)
        own.trainer.done += 1
    lines = [line for line in text().splitlines() if "updates" in line]
    assert [line.partition(",")[0] for line in lines] == ["epoch 1: 1 of 20 updates", "epoch 1: 2 of 20 updates"]
    assert lines[0].endswith("loss 9") and lines[1].endswith("loss 8.5")


def rows_of(text, *validations):
    """The rows of the tables of these validations."""
    for stats in validations:
        make_bar([0], epoch=1, prefix="valid on 'valid' subset").print(stats, tag="valid")
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text().splitlines() if "│" in line]


def test_a_validation_is_a_table_of_pairs_tiers_and_all_with_the_change(shown):
    _, text = shown
    stats = {"loss": 4.0, "nll_loss": 3.9, "ppl": 16.0, "en-de_loss": 3.5, "en-de_nll_loss": 3.4, "en-de_ppl": 11.3}
    stats |= {"high_loss": 3.5, "high_ppl": 11.3, "low_loss": 3.0, "low_ppl": 8.0, "bleu": 20.0}
    stats |= {"num_updates": 10, "best_loss": 4.0}
    stats |= {"en-fr_chrf": 30.0, "en-fr_loss": 2.0, "en-fr_ppl": 4.0}  # in any order
    rows = rows_of(text, stats, {**stats, "ppl": 12.0})
    assert rows[:3] == [
        ["en-fr", "2.000", "perplexity", "4.00", ""], ["", "", "chrF++", "30.00", ""],
        ["en-de", "3.500", "perplexity", "11.30", ""],
    ]  # fmt: skip
    assert [row[0] for row in rows] == ["en-fr", "", "en-de", "low", "high", "all", ""] * 2
    assert rows[-2:] == [["all", "4.000", "perplexity", "12.00", "-4.00"], ["", "", "BLEU", "20.00", "+0.00"]]
    assert "valid after 10 updates" in text() and "best loss so far 4.000" in text()
    assert "pair loss (bits) figure value change" in " ".join(text().replace("┃", " ").split())


def test_a_benchmarks_validation_is_a_table_of_metrics_and_means(shown):
    own, text = shown
    own.trainer.task = grouped("small", "all")
    stats = {"loss": 0.5, "ppl": 2.0, "cola_loss": 0.75, "cola_matthews": 40.0, "mnli/mismatched_loss": 0.5}
    stats |= {"mnli/mismatched_accuracy": 80.0, "mnli/mismatched_no-label": 5.0, "all": 60.0, "best_all": 60.0}
    assert rows_of(text, stats, {**stats, "cola_matthews": 42.5, "all": 62.5})[4:] == [
        ["cola", "0.750", "matthews", "42.50", "+2.50"],
        ["mnli/mismatched", "0.500", "accuracy", "80.00", "+0.00"],
        ["", "", "no-label", "5.00", "+0.00"],
        ["all", "", "mean", "62.50", "+2.50"],
    ]
    assert "best all so far 60.000" in text()


@pytest.mark.parametrize("rank", [0, 1])
def test_the_screen_has_what_is_for_it_and_the_first_process_keeps_all(tmp_path, monkeypatch, shown, rank):
    _, text = shown
    monkeypatch.setattr(logging.Logger.manager, "disable", logging.NOTSET)  # other tests silence runs by it
    monkeypatch.setattr(logging, "root", logging.RootLogger(logging.INFO))
    monkeypatch.setattr(logging, "getLogger", lambda: logging.root)
    monkeypatch.setenv("RANK", str(rank))
    cfg = SimpleNamespace(common=SimpleNamespace(log_file=None), checkpoint=SimpleNamespace(save_dir=tmp_path))
    screen.log_to_file(cfg)
    screen.log_to_file(cfg)
    logging.root.info("options")
    logging.root.info("sparsified", extra=screen.FOR_SCREEN)
    logging.root.warning("careful")
    assert ("sparsified" in text(), "options" in text(), "careful" in text()) == (rank == 0, False, True)
    lines = [line.split(" | ")[-1] for log in tmp_path.glob("train.log") for line in log.read_text().splitlines()]
    assert lines == (["options", "sparsified", "careful"] if rank == 0 else [])


def test_a_run_shows_a_table_and_keeps_everything_in_a_file(corpus, tmp_path):
    """The real command; fairseq's own lines are in the file once, not once per epoch as with its `--log-file`."""
    options = ("--log-format", "rich", "--log-interval", 1, "--log-file", tmp_path / "train.log")
    samples = ("--eval-chrf", "--eval-bleu-print-samples", "--eval-bleu-args", '{"beam": 1, "max_len_b": 9}')
    batches = ("--batch-size-valid", 3, "--required-batch-size-multiple", 1)
    result = train(corpus, tmp_path / "run", "--max-epoch", 2, *options, *samples, *batches)
    assert "├" in result.stdout and "en-aa" in result.stdout and "'common':" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) < 150
    log = (tmp_path / "train.log").read_text()
    for kind in ("hypothesis", "reference"):  # of each pair the first one, at each of two validations
        assert result.stdout.count(f"example {kind} (en-aa): ") == 2 < log.count(f"example {kind} (en-aa): ")
    assert log.count("'common':") == 1 and "BaseMoEModel" in log
    assert log.count("begin training epoch 2") == 1 and log.count("| valid | epoch 002 ") == 1
    assert "epoch 2: 1" not in result.stderr and "Traceback" not in result.stderr
