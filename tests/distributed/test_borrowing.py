"""A source and a target of PEMT train in two processes as in one, and what is frozen stays as it was to the bit."""

import logging

import pytest
import torch

from tests.distributed.test_combinations import configuration
from tests.distributed.test_freezing import train
from tests.helpers.benchmark import make_benchmark
from tests.helpers.pemt import SOURCES, OneTask, PemtT5Model, pemt_options
from tests.helpers.processes import run_processes
from tests.helpers.text_to_text import make_t5, pretrained_t5, text_arguments, tiny_config


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The configurations of a run of each stage."""
    folder = tmp_path_factory.mktemp("borrowing")
    make_benchmark(folder, {"train": 40, "dev": 4})
    make_t5(folder / "t5.pt")
    for name in SOURCES:
        task = OneTask(name, pretrained_t5(), tiny_config())
        model = PemtT5Model.build_model(pemt_options(tiny_config(), pemt_stage="source"), task)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data += 0.3 * torch.randn_like(parameter)
        model.leave_file(str(folder))
    files = ",".join(str(folder / f"{name}.pt") for name in SOURCES)
    stages = {
        "source": ("--source-task", "rte", "--pemt-stage", "source"),
        "target": ("--target-task", "rte", "--pemt-sources", files),
    }
    common = (
        "--init-model", folder / "t5.pt", "--arch", "pemt_t5", "--adapter-rank", 3, "--adapter-alpha", 6, "--adam-eps",
        0.01, "--lr", 0.01, "--criterion", "pemt", "--batch-size", 8,
    )  # fmt: skip
    return {
        name: configuration(text_arguments(folder, folder / "checkpoints", *options, *common))
        for name, options in stages.items()
    }


def train_without_chance(rank, run, backend):
    """Without the dropout of the prompts' correlation, which each process draws for itself."""
    from fairseq_mtmoe.models.pemt import prompts

    logging.disable(logging.INFO)
    prompts.ATTENTION_DROPOUT = 0.0
    return train(run, {"distributed_training.ddp_backend": backend})


@pytest.fixture(scope="module")
def one_process(runs):
    """What one process makes of each stage."""
    return {name: run_processes(train_without_chance, 1, run, "pytorch_ddp")[0] for name, run in runs.items()}


@pytest.mark.parametrize(
    ("stage", "backend"), [("source", "pytorch_ddp"), ("target", "pytorch_ddp"), ("target", "legacy_ddp")]
)
def test_two_processes_train_as_one_and_leave_what_is_frozen(stage, backend, runs, one_process):
    expected = one_process[stage]
    for result in run_processes(train_without_chance, 2, runs[stage], backend):
        assert result["frozen"] == expected["frozen"] and len(result["frozen"]) > 20
        assert not result["moved"] and not result["gradients"]
        assert result["remembered"] == expected["remembered"] > 0
        for key, value in expected["state"].items():
            right = torch.tensor(value)
            torch.testing.assert_close(torch.tensor(result["state"][key]), right, rtol=1e-5, atol=1e-5)
