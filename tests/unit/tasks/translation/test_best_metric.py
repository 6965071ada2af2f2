"""The metric of the best checkpoint: one that a translation's validation logs, or refused at the start."""

import pytest
from fairseq_cli import train

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.tasks.translation.scoring import COUNTS, LOGGED, LOSSES, check_best_metric
from fairseq_mtmoe.training.option_check import changed_options
from tests.helpers.commands import training_arguments
from tests.helpers.digits import digit_fixture
from tests.helpers.refused import refused
from tests.helpers.training import run_here, train_here

data = digit_fixture(train=60, valid=4)
SCORED = ("--eval-bleu", "--eval-chrf", "--eval-bleu-args", '{"beam": 1, "max_len_b": 5}')
OF_PAIR = [f"en-aa_{figure}" for figure in (*LOSSES, *COUNTS)]
NAMES = {
    *COUNTS,
    *OF_PAIR,
    "low_bleu",
    "high_loss",
    "other",
    "best_loss",
    *(name for of in LOGGED.values() for name in of),
}
RUNS = {
    "cross_entropy": (),
    "cross_entropy by sentence": ("--sentence-avg",),
    "label_smoothed_cross_entropy": ("--report-accuracy", *SCORED[:1], *SCORED[2:]),
    "moe_label_smoothed_cross_entropy": ("--load-balancing-weight", 0.1, "--expert-gates", "switch", *SCORED[1:]),
}


@pytest.mark.parametrize("run", RUNS)
def test_what_a_validation_logs_is_what_is_accepted(run, data, tmp_path, monkeypatch):
    found = []
    stats_of = train.get_valid_stats

    def noted(cfg, trainer, stats, tracking_best):
        stats = stats_of(cfg, trainer, stats, tracking_best)
        found.append((changed_options(cfg), trainer.task, set(stats)))
        return stats

    monkeypatch.setattr(train, "get_valid_stats", noted)
    given = [*training_arguments(data, tmp_path, "--criterion", run.split()[0], *RUNS[run])]
    if run.startswith("cross_entropy"):
        at = given.index("--label-smoothing")
        del given[at : at + 2]
    run_here([*given, "--max-update", 1, "--no-save"])
    ((options, task, logged),) = found
    names = [*task.validated_tasks, *(group.name for group in task.groups())]
    accepted = set()
    for name in NAMES | logged:
        try:
            check_best_metric({**options, "best_checkpoint_metric": name}, names)
            accepted.add(name)
        except UserError:
            pass
    assert accepted == logged
    check_best_metric({**options, "best_checkpoint_metric": "other", "criterion": "another"}, names)


def test_a_metric_that_no_validation_logs_is_refused_before_the_first_update(data, tmp_path):
    with refused("--best-checkpoint-metric"):
        train_here(data, tmp_path, "--best-checkpoint-metric", "bleu", "--max-update", 1)
    assert not list(tmp_path.glob("*.pt"))
    options = ("--best-checkpoint-metric", "bleu", "--disable-validation", "--max-update", 1)
    assert len(train_here(data, tmp_path, *options)["losses"]) == 1
