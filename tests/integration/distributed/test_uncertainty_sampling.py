"""Training on the most uncertain candidates: processes choose what one would, a resumed run what it would have."""

import numpy as np
import pytest
import torch

from fairseq_mtmoe.multitask import selection
from fairseq_mtmoe.multitask.sampling.candidates import most_uncertain
from fairseq_mtmoe.report import run_log
from tests.helpers.benchmark import make_benchmark, make_encoder, task_arguments
from tests.helpers.commands import training_arguments
from tests.helpers.digits import make_digit_corpus
from tests.helpers.processes import run_processes
from tests.helpers.scheduled import rarely
from tests.helpers.trainers import groups_of, trainer_of
from tests.helpers.training import run_here

# An epoch of 9 batches, of which the last is of one process alone.
COMMON = ("--sampling-method", "uncertainty", "--virtual-epoch-size", 36, "--batch-size", 4, "--adam-eps", 1e-3,
          "--num-experts", 4, "--log-interval", 1)  # fmt: skip


@pytest.fixture(scope="module", params=rarely(["translation", "benchmark"], "benchmark"))
def arguments_of(request, tmp_path_factory):
    """A run with experts: the arguments for a folder and further options."""
    data = tmp_path_factory.mktemp("data")
    if request.param == "translation":
        make_digit_corpus(data, train=120, valid=10)
        return lambda folder, *options: training_arguments(data, folder, *COMMON, "--no-token-shuffle", *options)
    make_benchmark(data, {"train": 40, "dev": 8})
    make_encoder(data / "encoder.pt")
    tasks = ("--glue-tasks", "cola,stsb,wic,rte", "--init-encoder", data / "encoder.pt")
    return lambda folder, *options: task_arguments(data, folder, *tasks, *COMMON, *options)


def selections(folder):
    return [event for event in run_log.read(folder) if event["event"] == "selection"]


def train_with(rank, arguments):
    return run_here(arguments)


def test_two_processes_choose_what_one_does(arguments_of, tmp_path):
    options = ("--max-update", 7, "--no-save")  # of which the fifth is the epoch's end
    one, two = tmp_path / "one", tmp_path / "two"
    (alone,) = run_processes(train_with, 1, arguments_of(one, *options, "--update-freq", 2))
    several = run_processes(train_with, 2, arguments_of(two, *options))
    assert len(alone["losses"]) == 7
    for result in several:
        np.testing.assert_allclose(result["losses"], alone["losses"], rtol=1e-5)
        np.testing.assert_allclose(result["norms"], alone["norms"], rtol=1e-4)
    assert len(selections(two)) == 2 and selections(two)[0]["updates"] == 5
    for found, right in zip(selections(two), selections(one), strict=True):
        assert found.pop("relative_entropy") == pytest.approx(right.pop("relative_entropy"), rel=1e-5)
        assert found == right
    for event, steps in zip(selections(one), (9, 4), strict=True):
        assert sum(event["trained"].values()) == 4 * steps
        # Where a task's data ends and begins again in a step, an example may be drawn twice, and is a candidate once.
        assert 4 * steps - 2 <= min(event["candidates"].values()) <= max(event["candidates"].values()) == 4 * steps
        assert 0 < event["share_of_data"] < 1


def test_a_run_that_goes_on_in_the_middle_of_an_epoch_chooses_as_if_it_had_not_stopped(arguments_of, tmp_path):
    def train(folder, updates):
        return run_here(arguments_of(tmp_path / folder, "--dropout", 0.1, "--max-update", updates, "--max-epoch", 9))

    whole, _, rest = train("whole", 12), train("part", 5), train("part", 12)
    assert rest["losses"] == whole["losses"][5:]
    torch.testing.assert_close(rest["parameters"], whole["parameters"], rtol=0, atol=0)
    last, right = selections(tmp_path / "part")[-1], selections(tmp_path / "whole")[-1]
    assert last == right and last["update"] == 12 and last["updates"] == 3
    if "stsb" in last["trained"]:
        assert 0 < last["relative_entropy"]["stsb"] <= 1


def test_half_precision_has_entropies_of_full_precision(arguments_of, tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(selection, "most_uncertain", lambda *given: found.append(given) or most_uncertain(*given))
    trainer = trainer_of(arguments_of(tmp_path, "--dropout", 0.1), common__bf16=True)
    losses = [trainer.train_step(samples)["loss"] for samples in groups_of(trainer, 3)]
    assert len(found) == 3 and np.isfinite(losses).all()
    for entropy_C, most_C, _, _ in found:
        relative_C = entropy_C / most_C
        assert relative_C.min() > 0 and relative_C.max() < 1.0001
        assert len(np.unique(relative_C)) > 0.9 * len(relative_C)  # in bfloat16 hardly any two would differ
