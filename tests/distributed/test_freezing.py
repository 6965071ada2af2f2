"""An encoder with a frozen half trains in two processes as in one, and what is frozen stays as it was to the bit."""

import copy
import logging

import pytest
import torch

from tests.distributed.test_combinations import configuration, trainer_of
from tests.helpers.benchmark import make_benchmark, make_encoder, task_arguments
from tests.helpers.processes import run_processes

UPDATES = 3
BACKENDS = ("pytorch_ddp", "legacy_ddp")
PRECISIONS = {"float32": {}, "bfloat16": {"common.bf16": True}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("freezing")
    make_benchmark(folder, {"train": 40, "dev": 4})
    make_encoder(folder / "encoder.pt")
    options = ("--init-encoder", folder / "encoder.pt", "--arch", "ca_mtl", "--adam-eps", 0.01, "--lr", 0.01)
    arguments = task_arguments(folder, folder / "checkpoints", *options, "--batch-size", 8)
    return configuration(arguments)


def train(run, changes):
    """The model's state after some updates; names of what is frozen, of what of it changed, and what Adam remembers."""
    from fairseq import checkpoint_utils
    from fairseq.data import iterators

    trainer = trainer_of(run, changes)
    if trainer.cfg.checkpoint.finetune_from_model:
        checkpoint_utils.load_checkpoint(trainer.cfg.checkpoint, trainer)
    before = copy.deepcopy(trainer.get_model().state_dict())
    epoch = trainer.get_train_iterator(epoch=1)
    trainer.begin_epoch(1)
    batches = epoch.next_epoch_itr(shuffle=True)
    for samples in iterators.GroupedIterator(batches, trainer.cfg.optimization.update_freq[0]):
        trainer.train_step(samples)
        if trainer.get_num_updates() == UPDATES:
            break
    model = trainer.get_model()
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    state = model.state_dict()
    return {
        "state": {name: value.float().tolist() for name, value in state.items()},
        "frozen": frozen,
        "moved": [name for name in frozen if not torch.equal(state[name], before[name])],
        "gradients": [name for name in frozen if model.get_parameter(name).grad is not None],
        "remembered": len(trainer.optimizer.state_dict()["state"]),
    }


def train_each(rank, run, backend):
    logging.disable(logging.INFO)
    changes = {"distributed_training.ddp_backend": backend}
    return {name: train(run, precision | changes) for name, precision in PRECISIONS.items()}


@pytest.fixture(scope="module")
def one_process(run):
    (results,) = run_processes(train_each, 1, run, BACKENDS[0])
    return results


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_processes_train_as_one_and_leave_the_frozen_half(backend, run, one_process):
    for found in run_processes(train_each, 2, run, backend):
        for name, result in found.items():
            expected, tolerance = one_process[name], 1e-2 if PRECISIONS[name] else 1e-5
            assert len(result["frozen"]) == 5 + 16
            assert not result["moved"] and not result["gradients"]
            trained = len(result["state"]) - len(result["frozen"])
            assert result["remembered"] == expected["remembered"] == trained
            for key, value in expected["state"].items():
                right = torch.tensor(value)
                torch.testing.assert_close(torch.tensor(result["state"][key]), right, rtol=tolerance, atol=tolerance)
