"""Sources and targets of PEMT train alike in two processes, and what is frozen stays."""

import logging

import torch
from fairseq import tasks

from tests.distributed.test_combinations import UPDATES
from tests.helpers.benchmark import make_benchmark, save_before_training
from tests.helpers.commands import training_arguments
from tests.helpers.digits import make_digit_corpus
from tests.helpers.pemt import OneTask, PemtT5Model, pemt_options, source_files
from tests.helpers.processes import run_processes
from tests.helpers.text_to_text import make_t5, pretrained_t5, text_arguments, tiny_config
from tests.helpers.trainers import updated
from tests.helpers.training import configured

COMMON = (
    "--adapter-rank", 3, "--adapter-alpha", 6, "--adam-eps", 0.01, "--lr", 0.01, "--criterion", "pemt",
    "--label-smoothing", 0,
)  # fmt: skip
SOURCE = ("--pemt-stage", "source")


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


def train(rank, runs):
    """All runs. The prompts' correlation has no dropout, which each process draws for itself."""
    from fairseq_mtmoe.models.pemt import base_model

    logging.disable(logging.INFO)
    base_model.ATTENTION_DROPOUT = 0.0
    settings = dict(distributed_training__ddp_backend="pytorch_ddp")
    return {name: updated(run, UPDATES, **settings) for name, run in runs.items()}


def test_two_processes_train_as_one_and_leave_what_is_frozen(tmp_path):
    make_benchmark(tmp_path, {"train": 40, "dev": 4})
    runs = {**of_texts(tmp_path), **of_languages(tmp_path)}
    (one_process,) = run_processes(train, 1, runs)
    for results in run_processes(train, 2, runs):
        for name, right in one_process.items():
            found = results[name]
            assert found["frozen"] == right["frozen"] and len(found["frozen"]) > 20
            assert not found["moved"] and not found["gradients"]
            assert found["remembered"] == right["remembered"] > 0
            torch.testing.assert_close(found["state"], right["state"], rtol=1e-5, atol=1e-5)
