"""Two processes train as one does, whatever fairseq option the gradients, the parameters or the optimizer pass through.

One process sees the same batches by twice the `--update-freq`; each batch is an assignment group of its own.
"""

import logging

import pytest
import torch
from torch import distributed as dist

from tests.helpers.benchmark import make_benchmark, make_encoder, task_arguments
from tests.helpers.digits import make_digit_corpus
from tests.helpers.processes import run_processes

UPDATES = 3
HALF = {"common.fp16": True, "common.fp16_no_flatten_grads": True, "common.fp16_init_scale": 4}
AVERAGED = {"ema.store_ema": True, "ema.ema_decay": 0.5}
CLIPPED = {"optimization.clip_norm": 0.1}
ACCUMULATED = {"optimization.update_freq": [2]}
CHECKPOINTED = {"model.checkpoint_activations": True}
SPREAD = {"distributed_training.zero_sharding": "os"}
CONDITIONAL = {"model.conditional": "attention,norm,alignment,bottleneck"}
COMBINATIONS = {
    "half precision": HALF,
    "memory-efficient half precision": HALF | {"common.memory_efficient_fp16": True},
    "bfloat16": {"common.bf16": True},
    "averaged in float32": AVERAGED | HALF | {"ema.ema_fp32": True},
    "clipped in half precision": CLIPPED | HALF,
    "spread state in half precision": SPREAD | HALF,
    "conditional, checkpointed and in half precision": CONDITIONAL | CHECKPOINTED | HALF,
    "all together": CHECKPOINTED | AVERAGED | ACCUMULATED | CLIPPED | SPREAD,
}
TOLERANCES = {"common.fp16": 5e-3, "common.bf16": 1e-2}  # their numbers have 11 and 8 bits
BACKENDS = {"translation": "legacy_ddp", "benchmark": "pytorch_ddp"}


def configuration(arguments):
    """fairseq's configuration of a run with these options, as plain containers."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from omegaconf import OmegaConf

    from fairseq_mtmoe import register

    register()
    cfg = options.parse_args_and_arch(options.get_training_parser(), list(map(str, arguments)))
    return OmegaConf.to_container(convert_namespace_to_omegaconf(cfg))


def of_languages(data, save_dir, *more):
    """The options of a run in which each block has another gate."""
    return [
        data, "--task", "translation_heated", "--lang-pairs", "en-aa,en-bb,en-cc", "--encoder-langtok", "tgt",
        "--decoder-langtok", "--save-dir", save_dir, "--cpu", "--seed", 1, "--arch", "base_moe_tiny",
        "--encoder-layers", 3, "--decoder-layers", 3, "--encoder-embed-dim", 16, "--decoder-embed-dim", 16,
        "--encoder-ffn-embed-dim", 24, "--decoder-ffn-embed-dim", 24, "--encoder-attention-heads", 2,
        "--decoder-attention-heads", 2, "--expert-interval", 1, "--expert-gates", "base,task,switch",
        "--num-experts", 4, "--no-token-shuffle", "--criterion", "label_smoothed_cross_entropy", "--optimizer", "adam",
        # The gradients of some biases are rounding errors alone, which a small epsilon would make large updates of.
        "--adam-eps", 0.01, "--lr", 0.01, "--lr-scheduler", "fixed", "--dropout", 0.0, "--max-tokens", 80,
        "--sampling-method", "temperature", "--sampling-temperature", 1.5, "--num-workers", 0, *more,
    ]  # fmt: skip


def of_tasks(data, save_dir):
    """Those of a mixture of classification, regression, ranking and words."""
    options = ("--init-encoder", data / "encoder.pt", "--no-token-shuffle", "--adam-eps", 0.01, "--lr", 0.01)
    return task_arguments(data, save_dir, *options, "--batch-size", 8)


def trainer_of(run, changes):
    """What `fairseq-train` builds in this process."""
    from fairseq import tasks, utils
    from fairseq.trainer import Trainer
    from omegaconf import OmegaConf

    from fairseq_mtmoe import register

    register()
    cfg = OmegaConf.create(run)
    for option, value in changes.items():
        OmegaConf.update(cfg, option, value)
    cfg.distributed_training.distributed_world_size = world_size = dist.get_world_size()
    cfg.distributed_training.distributed_rank = dist.get_rank()
    cfg.optimization.update_freq = [cfg.optimization.update_freq[0] * 2 // world_size]
    utils.set_torch_seed(1)
    task = tasks.setup_task(cfg.task)
    return Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))


def train(run, changes):
    """Losses, norms of the gradients, parameters and averaged parameters of a few updates."""
    from fairseq.data import iterators

    trainer = trainer_of(run, changes)
    norms, losses = [], []
    clip = trainer.clip_grad_norm

    def clip_and_remember(clip_norm):
        norms.append(float(clip(clip_norm)))
        return torch.tensor(norms[-1])

    trainer.clip_grad_norm = clip_and_remember
    epoch = trainer.get_train_iterator(epoch=1)
    trainer.begin_epoch(1)
    batches = epoch.next_epoch_itr(shuffle=True)
    for samples in iterators.GroupedIterator(batches, trainer.cfg.optimization.update_freq[0]):
        losses.append(trainer.train_step(samples)["loss"])
        if trainer.get_num_updates() == UPDATES:
            break
    averaged = trainer.ema.get_model() if trainer.cfg.ema.store_ema else None
    return {
        "losses": losses,
        "norms": norms,
        "parameters": as_lists(trainer.get_model()),
        "averaged": as_lists(averaged) if averaged is not None else {},
    }


def as_lists(model):
    return {name: value.tolist() for name, value in model.state_dict().items()}


def train_each(rank, run, backend):
    """All combinations, one after the other."""
    logging.disable(logging.INFO)
    changes = {"distributed_training.ddp_backend": backend}
    return {name: train(run, combination | changes) for name, combination in COMBINATIONS.items()}


@pytest.fixture(scope="module", params=BACKENDS)
def runs(request, tmp_path_factory):
    """All combinations in one process, and in each of two."""
    folder = tmp_path_factory.mktemp("combinations")
    if request.param == "benchmark":
        make_benchmark(folder, {"train": 40, "dev": 4})
        make_encoder(folder / "encoder.pt")
        run = configuration(of_tasks(folder, folder / "checkpoints"))
    else:
        corpus = make_digit_corpus(folder / "digits", train=300, valid=4, test=4)
        run = configuration(of_languages(corpus, folder / "checkpoints"))
    (alone,) = run_processes(train_each, 1, run, BACKENDS[request.param])
    return alone, run_processes(train_each, 2, run, BACKENDS[request.param])


@pytest.mark.parametrize("name", COMBINATIONS)
def test_two_processes_train_as_one(name, runs):
    one_process, two_processes = runs
    expected = one_process[name]
    assert len(expected["norms"]) == UPDATES and len(set(expected["losses"])) == UPDATES
    tolerance = next((value for option, value in TOLERANCES.items() if option in COMBINATIONS[name]), 1e-5)
    for rank, results in enumerate(two_processes):
        found = results[name]
        assert found["norms"] == two_processes[0][name]["norms"]
        assert found["norms"] == pytest.approx(expected["norms"], rel=tolerance)
        assert found["losses"] == pytest.approx(expected["losses"], rel=tolerance, abs=1e-3)  # fairseq rounds them
        for kind in ("parameters", "averaged"):
            assert list(found[kind]) == list(expected[kind])
            for key, value in expected[kind].items():
                right = torch.tensor(value)
                if ".moe.experts." in key:
                    right = right[2 * rank : 2 * rank + 2]
                torch.testing.assert_close(
                    torch.tensor(found[kind][key]), right, rtol=tolerance, atol=tolerance, msg=f"{kind} {key}"
                )


def test_bfloat16_needs_no_tpu(tmp_path):
    from fairseq.distributed import utils
    from omegaconf import OmegaConf

    cfg = OmegaConf.create(configuration(of_languages(tmp_path, tmp_path, "--bf16")))
    assert cfg.common.tpu, "fairseq was corrected: launch.starting need not correct it"
    utils.call_main(cfg, lambda cfg: None)
    assert cfg.common.bf16 and not [name for name, options in cfg.items() if options and options.get("tpu")]
