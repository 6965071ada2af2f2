"""The best validation, and what ends a run: kept when the run goes on, begun anew by a run that measures otherwise."""

import logging

import pytest
from fairseq import checkpoint_utils
from fairseq_cli import train

from fairseq_mtmoe.checkpoints import file_io
from tests.helpers.commands import training_arguments
from tests.helpers.trainers import trainer_here
from tests.helpers.training import run_here, train_here

EACH_UPDATE = ("--validate-interval-updates", 1, "--save-interval-updates", 1, "--keep-interval-updates", 1)
PAIR = ("--lang-pairs", "en-aa", "--langs", "en,aa,bb,cc")


@pytest.fixture
def scores(monkeypatch):
    """Validations with given results, one after the other."""

    def give(*values):
        results = iter(values)

        def stats(cfg, trainer, *_):
            return {"num_updates": trainer.get_num_updates(), **dict.fromkeys(("loss", "ppl"), next(results))}

        monkeypatch.setattr(train, "get_valid_stats", stats)

    return give


@pytest.fixture(autouse=True)
def is_logged(monkeypatch, caplog):
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)  # what an earlier run here has set
    monkeypatch.setattr(logging, "disable", lambda level: None)
    caplog.set_level("INFO", "fairseq_mtmoe")


def saved(folder, name="checkpoint_last.pt"):
    return file_io.load(str(folder / name))["extra_state"]


def test_patience_counts_over_restarts_and_the_end_is_an_end(corpus, scores, tmp_path, caplog):
    def go_on(updates, *options):
        return len(train_here(corpus, tmp_path, *EACH_UPDATE, "--max-update", updates, *options)["losses"])

    scores(3.0, 2.0, 2.5, 2.5, 2.5, 1.0, 1.5, 1.5, 1.5)
    assert go_on(3, "--patience", 3) == 3
    assert saved(tmp_path)["patience"] == {"best": 2.0, "num_runs": 1}
    assert go_on(9, "--patience", 3) == 2
    assert go_on(9, "--patience", 3) == 0
    assert "the run has ended: its last 3 validations were not better (--patience 3)" in caplog.text
    assert go_on(6, "--patience", 4) == 1
    assert saved(tmp_path)["patience"] == {"best": 1.0, "num_runs": 0}
    assert go_on(7, "--patience", 1, "--reset-meters") == 1  # as fairseq forgets the best value
    assert saved(tmp_path)["best"] == 1.5


ENDS = {
    "--max-epoch": ("--max-epoch", 1),
    "--max-update": ("--max-update", 2),
    "--stop-time-hours": ("--stop-time-hours", 1e-9, "--max-update", 9),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_run_that_has_ended_says_so_and_trains_no_more(end, corpus, tmp_path, caplog):
    assert train_here(corpus, tmp_path, *end)["losses"]
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    assert train_here(corpus, tmp_path, *end)["losses"] == []
    assert "the run has ended: it has " in caplog.text and end[0] in caplog.text
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == before
    again = ("--finetune-from-model", tmp_path / "checkpoint_last.pt")
    assert train_here(corpus, tmp_path / "new", *end, *again)["losses"]


TASKS = ("--lang-pairs", "en-aa,en-bb")
CASES = {  # changed options, and whether the best begins anew
    "maximized": (("--maximize-best-checkpoint-metric",), True),
    "another subset more": (("--valid-subset", "valid,test"), False),
    "tasks and subset": (("--valid-subset", "test", "--ignore-unused-valid-subsets", *TASKS), True),
    "metric": (("--best-checkpoint-metric", "ppl"), True),
}


@pytest.mark.parametrize(("options", "begins_anew"), CASES.values(), ids=CASES)
def test_another_measure_begins_the_best_anew_and_says_so(options, begins_anew, corpus, scores, tmp_path, caplog):
    scores(2.0, 3.0, 2.5, 9.0)
    train_here(corpus, tmp_path, *EACH_UPDATE, *PAIR, "--max-update", 2, "--patience", 9)
    train_here(corpus, tmp_path, *EACH_UPDATE, *PAIR, "--max-update", 3, "--patience", 9, *options)
    assert ("the best validation begins anew" in caplog.text) == begins_anew
    assert saved(tmp_path)["best"] == (2.5 if begins_anew else 2.0)
    assert (saved(tmp_path, "checkpoint_best.pt")["val_loss"] == 2.5) == begins_anew


def test_a_schedule_on_a_plateau_goes_on_as_if_nothing_had_happened(corpus, scores, tmp_path):
    def go_on(name, epochs):
        arguments = [*training_arguments(corpus, tmp_path / name, "--lr-patience", 1, "--max-epoch", epochs)]
        place = arguments.index("--total-num-update")
        arguments[place - 1 : place + 2] = ["reduce_lr_on_plateau"]
        run_here([*arguments, "--virtual-epoch-size", 100, "--warmup-updates", 1])

    losses = (2.0, 3.0, 3.0, 3.0, 3.0)
    scores(*losses)
    go_on("whole", 5)
    scores(*losses)
    for epochs in (2, 4, 5):
        go_on("parts", epochs)
    whole, parts = (saved(tmp_path / name)["plateau"] for name in ("whole", "parts"))
    assert whole == parts and whole["lr"] == pytest.approx(0.0005) and whole["num_bad_epochs"] == 1


def test_the_same_measure_keeps_the_best_and_a_new_run_forgets_it(corpus, scores, tmp_path, caplog):
    scores(2.0, 3.0)
    train_here(corpus, tmp_path / "run", *EACH_UPDATE, "--max-update", 1)
    reordered = ("--lang-pairs", "en-cc,en-bb,en-aa")
    train_here(corpus, tmp_path / "run", *EACH_UPDATE, "--max-update", 2, *reordered)
    assert saved(tmp_path / "run")["best"] == 2.0 and "anew" not in caplog.text
    checkpoint_utils.save_checkpoint.best = 2.0  # as under hydra's `--multirun`
    vars(train.should_stop_early).update(best=2.0, num_runs=5)
    trainer_here(corpus, tmp_path / "new").load_checkpoint("none.pt")
    for function in (checkpoint_utils.save_checkpoint, train.should_stop_early):
        assert not vars(function).keys() & {"best", "num_runs"}
