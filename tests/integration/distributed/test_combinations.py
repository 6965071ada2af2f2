"""Two processes train as one does, whatever fairseq option the gradients, the parameters or the optimizer pass through.

One process sees the same batches by twice the `--update-freq`; each batch is an assignment group of its own.
"""

import logging

import pytest
import torch

from tests.helpers.benchmark import make_benchmark, make_encoder, task_arguments
from tests.helpers.commands import training_arguments
from tests.helpers.digits import make_digit_corpus
from tests.helpers.pemt import PemtT5Model, pemt_options, source_files, text_task
from tests.helpers.processes import run_processes
from tests.helpers.scheduled import rarely
from tests.helpers.text_to_text import make_t5, pretrained_t5, text_arguments, tiny_config
from tests.helpers.trainers import updated
from tests.helpers.training import configured

UPDATES, EXPERTS = 3, ".moe.experts."
HALF = dict(common__fp16=True, common__fp16_no_flatten_grads=True, common__fp16_init_scale=4)
BFLOAT16 = dict(common__bf16=True)
AVERAGED = dict(ema__store_ema=True, ema__ema_decay=0.5)
CLIPPED = dict(optimization__clip_norm=0.1)
CHECKPOINTED = dict(model__checkpoint_activations=True)
CONDITIONAL = dict(model__conditional="attention,norm,alignment,bottleneck")
COMBINATIONS = {
    "half precision": HALF,
    "memory-efficient half precision": HALF | dict(common__memory_efficient_fp16=True),
    "bfloat16": BFLOAT16,
    "averaged in float32": AVERAGED | HALF | dict(ema__ema_fp32=True),
    "clipped in half precision": CLIPPED | HALF,
    "conditional, checkpointed and in half precision": CONDITIONAL | CHECKPOINTED | HALF,
    "all together": CHECKPOINTED | AVERAGED | CLIPPED | dict(update_freq=2),
    "float32": {},
    "float32 by legacy_ddp": dict(distributed_training__ddp_backend="legacy_ddp"),
}
TOLERANCES = {"common__fp16": 5e-3, "common__bf16": 1e-2}  # their numbers have 11 and 8 bits
# What is trained, by which backend unless the combination says so, in which combinations.
RUNS = {
    "translation": (
        "legacy_ddp",
        ["half precision", "memory-efficient half precision", "averaged in float32", "all together"],
    ),
    "benchmark": (
        "pytorch_ddp",
        ["bfloat16", "clipped in half precision", "conditional, checkpointed and in half precision", "all together"],
    ),
    "half frozen": ("pytorch_ddp", ["bfloat16", "float32", "float32 by legacy_ddp"]),
    "source of PEMT": ("pytorch_ddp", ["float32"]),
    "target of PEMT": ("pytorch_ddp", ["float32"]),
}  # fmt: skip
# The gradients of some biases are rounding errors alone, which a small epsilon would make large updates of.
COMMON = ("--no-token-shuffle", "--adam-eps", 0.01, "--lr", 0.01)


def of_languages(data, save_dir, *more):
    """The arguments of a run in which each block has another gate."""
    sizes = [(f"--{stack}-{size}", value) for stack in ("encoder", "decoder")
             for size, value in (("layers", 3), ("embed-dim", 16), ("ffn-embed-dim", 24))]  # fmt: skip
    return training_arguments(
        data, save_dir, *(part for size in sizes for part in size), "--expert-gates", "base,task,switch",
        "--num-experts", 4, *COMMON, "--warmup-updates", 0, "--clip-norm", 0, "--max-tokens", 80, *more,
    )  # fmt: skip


def of_pemt(run, folder):
    """The arguments of a run of a stage of PEMT on a T5."""
    make_t5(folder / "t5.pt")

    def make(seed, name, **options):
        task = text_task(name, pretrained_t5(), tiny_config())
        return PemtT5Model.build_model(pemt_options(tiny_config(), **options), task)

    stage = ("--source-task", "rte", "--pemt-stage", "source")
    if run == "target of PEMT":
        stage = ("--target-task", "rte", "--pemt-sources", ",".join(source_files(make=make)))
    return text_arguments(
        folder, folder / "checkpoints", *stage, "--init-model", folder / "t5.pt", "--arch", "pemt_t5", *COMMON[1:],
        "--batch-size", 8, "--adapter-rank", 3, "--adapter-alpha", 6, "--criterion", "pemt", "--label-smoothing", 0,
    )  # fmt: skip


def arguments_of(run, folder):
    """Of sentences, of a mixture of classification, regression, ranking and words, or of texts."""
    if run == "translation":
        return of_languages(make_digit_corpus(folder / "digits", train=300, valid=4, test=4), folder / "checkpoints")
    make_benchmark(folder, {"train": 40, "dev": 4})
    if run.endswith("PEMT"):
        return of_pemt(run, folder)
    make_encoder(folder / "encoder.pt")
    arch = ("--arch", "ca_mtl", *COMMON[1:]) if run == "half frozen" else COMMON
    return task_arguments(
        folder, folder / "checkpoints", "--init-encoder", folder / "encoder.pt", *arch, "--batch-size", 8
    )


def train_each(rank, run, arguments):
    """All combinations, one after the other. PEMT's prompts have no dropout, which each process draws for itself."""
    from fairseq_mtmoe.pemt import base_model

    logging.disable(logging.INFO)
    base_model.ATTENTION_DROPOUT = 0.0
    backend, names = RUNS[run]
    settings = {name: dict(distributed_training__ddp_backend=backend) | COMBINATIONS[name] for name in names}
    return {name: updated(arguments, UPDATES, **changes) for name, changes in settings.items()}


@pytest.mark.parametrize("run", rarely(RUNS, "half frozen", "benchmark"))
def test_two_processes_train_as_one(run, tmp_path):
    arguments = arguments_of(run, tmp_path)
    (one_process,) = run_processes(train_each, 1, run, arguments)
    two_processes = run_processes(train_each, 2, run, arguments)
    for name, expected in one_process.items():
        tolerance = next((value for option, value in TOLERANCES.items() if option in COMBINATIONS[name]), 1e-5)
        assert len(expected["norms"]) == UPDATES and len(set(expected["losses"])) == UPDATES, name
        for rank, of_rank in enumerate(two_processes):
            found = of_rank[name]
            assert found["norms"] == two_processes[0][name]["norms"], name
            assert found["norms"] == pytest.approx(expected["norms"], rel=tolerance), name
            assert found["losses"] == pytest.approx(expected["losses"], rel=tolerance, abs=1e-3)  # fairseq rounds them
            for kind in ("state", "averaged"):
                own = {key: value[2 * rank : 2 * rank + 2] for key, value in expected[kind].items() if EXPERTS in key}
                torch.testing.assert_close(found[kind], expected[kind] | own, rtol=tolerance, atol=tolerance)
            assert (len(found["frozen"]) > 20) == (run not in ("translation", "benchmark"))
            assert not found["moved"] and not found["gradients"], name
            assert 0 < found["remembered"] == expected["remembered"] <= len(found["state"]) - len(found["frozen"])


def test_bfloat16_needs_no_tpu(tmp_path):
    from fairseq.distributed import utils

    cfg = configured(of_languages(tmp_path, tmp_path, "--bf16"))
    assert cfg.common.tpu, "fairseq was corrected: launch.starting need not correct it"
    utils.call_main(cfg, lambda cfg: None)
    assert cfg.common.bf16 and not [name for name, options in cfg.items() if options and options.get("tpu")]
