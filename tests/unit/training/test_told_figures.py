"""The run log hears what fairseq's progress bars are told of training, and nothing else."""

from typing import Any

import pytest
from fairseq.logging import progress_bar

from fairseq_mtmoe.fairseq_patches import table
from fairseq_mtmoe.protocols import RunObserver
from fairseq_mtmoe.training import told_figures

table.apply()


class Task:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def begins(self, options: Any, device: Any) -> None:
        raise AssertionError

    def trained(self, update: int, figures: Any) -> None:
        self.heard.append((update, figures))

    def sparsified(self, update: int, num_experts: int) -> None:
        raise AssertionError

    def ended(self) -> None:
        raise AssertionError

    def expert_comm(self, update: int, updates: int, layers: Any) -> None:
        raise AssertionError


@pytest.fixture
def task() -> Any:
    task = Task()
    assert isinstance(task, RunObserver)
    told_figures.follow(task)
    yield task
    told_figures.follow(None)


def test_the_run_log_hears_of_updates_and_the_bar_shows_them_as_before(task, caplog):
    bar = progress_bar.progress_bar(range(3), log_format="simple", log_interval=1, epoch=2)
    assert list(bar) == [0, 1, 2]
    with caplog.at_level("INFO"):
        bar.log({"loss": 3.5}, tag="train_inner", step=7)
        bar.log({"loss": 3.6}, tag="other", step=8)
        bar.print({"loss": 3.7}, tag="train", step=9)
    assert task.heard == [(7, {"loss": 3.5})]
    shown = ("loss=3.5", "loss=3.6", "loss 3.7")
    assert all(any(loss in text for text in caplog.messages) for loss in shown)


def test_validation_and_other_commands_have_fairseqs_own_bar(task):
    plain = progress_bar.SimpleProgressBar
    assert type(progress_bar.progress_bar([0], log_format="simple", epoch=1, prefix="valid on 'valid' subset")) is plain
    assert type(progress_bar.progress_bar([0], log_format="simple")) is plain


def test_a_task_without_a_run_log_leaves_the_bar_as_it_is(task):
    told_figures.follow(object())
    assert type(progress_bar.progress_bar([0], log_format="simple", epoch=1)) is progress_bar.SimpleProgressBar
