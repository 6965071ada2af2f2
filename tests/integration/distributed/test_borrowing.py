"""Sources and targets of PEMT train alike in two processes, and what is frozen stays."""

import logging

import torch

from tests.helpers.benchmark import make_benchmark
from tests.helpers.pemt import PemtT5Model, pemt_options, source_files, text_task
from tests.helpers.processes import run_processes
from tests.helpers.text_to_text import make_t5, pretrained_t5, text_arguments, tiny_config
from tests.helpers.trainers import updated
from tests.integration.distributed.test_combinations import UPDATES

COMMON = (
    "--adapter-rank", 3, "--adapter-alpha", 6, "--adam-eps", 0.01, "--lr", 0.01, "--criterion", "pemt",
    "--label-smoothing", 0,
)  # fmt: skip
SOURCE = ("--pemt-stage", "source")


def of_texts(folder):
    """The arguments of a run of each stage on a T5."""
    make_t5(folder / "t5.pt")

    def make(seed, name, **options):
        task = text_task(name, pretrained_t5(), tiny_config())
        return PemtT5Model.build_model(pemt_options(tiny_config(), **options), task)

    files = ",".join(source_files(make=make))
    stages = {
        "t5, source": ("--source-task", "rte", *SOURCE),
        "t5, target": ("--target-task", "rte", "--pemt-sources", files),
    }
    begun = ("--init-model", folder / "t5.pt", "--arch", "pemt_t5", "--batch-size", 8)
    return {name: text_arguments(folder, folder / name, *more, *begun, *COMMON) for name, more in stages.items()}


def train(rank, runs):
    """All runs. The prompts' correlation has no dropout, which each process draws for itself."""
    from fairseq_mtmoe.pemt import base_model

    logging.disable(logging.INFO)
    base_model.ATTENTION_DROPOUT = 0.0
    settings = dict(distributed_training__ddp_backend="pytorch_ddp")
    return {name: updated(run, UPDATES, **settings) for name, run in runs.items()}


def test_two_processes_train_as_one_and_leave_what_is_frozen(tmp_path):
    make_benchmark(tmp_path, {"train": 40, "dev": 4})
    runs = of_texts(tmp_path)
    (one_process,) = run_processes(train, 1, runs)
    for results in run_processes(train, 2, runs):
        for name, right in one_process.items():
            found = results[name]
            assert found["frozen"] == right["frozen"] and len(found["frozen"]) > 20
            assert not found["moved"] and not found["gradients"]
            assert found["remembered"] == right["remembered"] > 0
            torch.testing.assert_close(found["state"], right["state"], rtol=1e-5, atol=1e-5)
