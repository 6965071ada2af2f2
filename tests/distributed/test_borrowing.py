"""Sources and targets of PEMT train alike in two processes and in half precision, and what is frozen stays."""

import logging

import pytest
import torch
from fairseq import tasks

from tests.distributed.test_combinations import BFLOAT16, HALF, UPDATES
from tests.helpers.benchmark import make_benchmark, make_encoder, save_before_training, task_arguments
from tests.helpers.commands import training_arguments
from tests.helpers.digits import make_digit_corpus
from tests.helpers.pemt import OneTask, PemtT5Model, pemt_encoder, pemt_options, source_files
from tests.helpers.processes import run_processes
from tests.helpers.text_to_text import make_t5, pretrained_t5, text_arguments, tiny_config
from tests.helpers.trainers import updated
from tests.helpers.training import configured

COMMON = (
    "--adapter-rank", 3, "--adapter-alpha", 6, "--adam-eps", 0.01, "--lr", 0.01, "--criterion", "pemt",
    "--label-smoothing", 0,
)  # fmt: skip
SOURCE = ("--pemt-stage", "source")
BACKENDS = {backend: dict(distributed_training__ddp_backend=backend) for backend in ("pytorch_ddp", "legacy_ddp")}


def of_texts(folder):
    """The arguments of a run of each stage on a T5."""
    make_t5(folder / "t5.pt")

    def make(seed, name, **options):
        task = OneTask(name, pretrained_t5(), tiny_config())
        return PemtT5Model.build_model(pemt_options(tiny_config(), **options), task)

    files = ",".join(source_files(make=make))
    stages = {
        "t5, source": ("--source-task", "rte", *SOURCE),
        "t5, target": ("--target-task", "rte", "--pemt-sources", files),
    }
    begun = ("--init-model", folder / "t5.pt", "--arch", "pemt_t5", "--batch-size", 8)
    return {name: text_arguments(folder, folder / name, *more, *begun, *COMMON) for name, more in stages.items()}


def of_encoder(folder):
    """Those of a target on an encoder."""
    make_encoder(folder / "encoder.pt")
    files = ",".join(source_files(make=pemt_encoder))
    options = ("--glue-tasks", "wic", "--init-encoder", folder / "encoder.pt", "--arch", "pemt_bert", "--batch-size", 8)
    return {"bert, target": task_arguments(folder, folder / "bert", *options, *COMMON, "--pemt-sources", files)}


def of_languages(folder):
    """Those of a run of each stage on a translator, whose weights come last."""
    data, langs = folder / "digits", ("--langs", "en,aa,bb,cc")
    make_digit_corpus(data, train=60, valid=10)
    dense = folder / "dense.pt"
    save_before_training(
        training_arguments(data, folder, "--arch", "base_dense_tiny", "--lang-pairs", "en-aa,en-bb", *langs), dense
    )

    def arguments(pair, *more):
        return training_arguments(
            data, folder / pair, "--arch", "pemt_translation_tiny", "--finetune-from-model", dense, "--lang-pairs",
            pair, *langs, "--description", f"1 2 {pair}", "--max-tokens", 80, *COMMON, "--warmup-updates", 0, *more,
        )  # fmt: skip

    for pair in ("en-aa", "en-bb"):
        cfg = configured(arguments(pair, *SOURCE))
        model = tasks.setup_task(cfg.task).build_model(cfg.model)
        model.load_state_dict(torch.load(dense)["model"])
        for parameter in model.parameters():
            if parameter.requires_grad:  # adapters and prompts that matter
                parameter.data += 0.3 * torch.randn_like(parameter)
        model.export_source(str(folder))
    files = ",".join(str(folder / f"{pair}.pt") for pair in ("en-aa", "en-bb"))
    hidden = ("--gate-input", "hidden")  # weights of each sentence
    return {
        "translation, source": arguments("en-aa", *SOURCE),
        "translation, target": arguments("en-cc", "--pemt-sources", files, *hidden),
    }


@pytest.fixture(scope="module")
def runs_and_one_process(tmp_path_factory):
    """The arguments of all runs, and what one process makes of each."""
    folder = tmp_path_factory.mktemp("borrowing")
    make_benchmark(folder, {"train": 40, "dev": 4})
    runs = {**of_texts(folder), **of_encoder(folder), **of_languages(folder)}
    return runs, dict(run_processes(train, 1, runs, BACKENDS["pytorch_ddp"])[0])


def train(rank, runs, *settings):
    """All runs in all settings. The prompts' correlation has no dropout, which each process draws for itself."""
    from fairseq_mtmoe.models.pemt import base_model

    logging.disable(logging.INFO)
    base_model.ATTENTION_DROPOUT = 0.0
    return [(name, updated(run, UPDATES, **changes)) for name, run in runs.items() for changes in settings]


def assert_close(result, expected, tolerance):
    assert result["frozen"] == expected["frozen"] and len(result["frozen"]) > 20
    assert not result["moved"] and not result["gradients"] and result["remembered"] > 0
    torch.testing.assert_close(result["state"], expected["state"], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("backend", "which"), [("pytorch_ddp", ""), pytest.param("legacy_ddp", "target", marks=pytest.mark.rare)]
)
def test_two_processes_train_as_one_and_leave_what_is_frozen(backend, which, runs_and_one_process):
    runs, one_process = runs_and_one_process
    chosen = {name: run for name, run in runs.items() if which in name}
    for results in run_processes(train, 2, chosen, BACKENDS[backend]):
        assert [name for name, _ in results] == list(chosen)
        for name, result in results:
            assert_close(result, one_process[name], 1e-5)
            assert result["remembered"] == one_process[name]["remembered"]


@pytest.mark.rare
def test_in_half_precision_they_train_alike_and_leave_what_is_frozen(runs_and_one_process):
    """Among them sources whose fingerprint is of weights that were not rounded yet."""
    runs, one_process = runs_and_one_process
    targets = {name: run for name, run in runs.items() if "target" in name}
    (results,) = run_processes(train, 1, targets, BFLOAT16, HALF)
    assert len(results) == 3 * 2
    for name, result in results:
        assert_close(result, one_process[name], 0.02)
