"""What `bench_glue.py` trains: MT-Dense, MT-TaG, CA-MTL and Hugging Face's `BertModel`, with the same heads.

All begin with the same weights and have the same loss and optimizer. The batches are the training data's own, of
examples of like lengths and most of the tasks; or as long as they may be.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.models import BaseFairseqModel
from fairseq.optim import FairseqOptimizer, build_optimizer
from fairseq.tasks import setup_task
from torch import Tensor, nn
from wmt15_models import training_config

from fairseq_mtmoe.conditioning import PARTS
from fairseq_mtmoe.multitask.mixtures.dataset import BatchLimits
from fairseq_mtmoe.multitask.mixtures.training import TrainingMixture
from fairseq_mtmoe.nlu.bert.config import EncoderConfig
from fairseq_mtmoe.nlu.bert.encoder import BertEncoder
from fairseq_mtmoe.nlu.bert.key_map import KEYS
from fairseq_mtmoe.nlu.bert.pretrained import PretrainedEncoder

Sample = dict[str, Any]
PEER = "Hugging Face's BertModel"
DENSE, SPARSE = "mt_dense", "mt_tag"
FROZEN = "mt_dense, half frozen"
ADAPTED = "ca_mtl, nothing frozen"
ADAPTED_FROZEN = "ca_mtl, half frozen"
ALL_PARTS = ",".join(PARTS)
# A system's name -> its architecture and its options.
SYSTEMS: dict[str, tuple[str, tuple[str, ...]]] = {
    DENSE: ("mt_dense", ("--freeze-layers", "0")),
    SPARSE: ("mt_tag", ()),
    FROZEN: ("mt_dense", ("--freeze-layers", "half")),
    ADAPTED: ("ca_mtl", ("--conditional", ALL_PARTS, "--freeze-layers", "0")),
    ADAPTED_FROZEN: ("ca_mtl", ("--conditional", ALL_PARTS, "--freeze-layers", "half")),
}


def made_encoder(path: Path, config: EncoderConfig, tokenizer: str) -> None:
    """Write a file as of `mtmoe import-hf`: an untrained encoder of these sizes."""
    torch.manual_seed(1)
    PretrainedEncoder(config, {"tokenizer.json": tokenizer}, BertEncoder(config).state_dict()).save(path)


def configuration(data: Path, encoder: Path, arch: str, *arguments: str) -> Any:
    given = [
        str(data), "--task", "glue", "--arch", arch, "--init-encoder", str(encoder), "--criterion", "multitask",
        "--optimizer", "fused_adam", "--lr", "5e-5", "--cpu", "--num-workers", "0", "--max-epoch", "1", *arguments,
    ]  # fmt: skip
    return training_config(*given)


class PeerModel(BaseFairseqModel):
    """`BertModel` in PyTorch, called as our models are.

    Args:
        ours: a dense model, of which it gets weights and heads.
    """

    def __init__(self, ours: Any) -> None:
        from transformers import AutoConfig, BertModel

        super().__init__()
        config = ours.encoder.config
        values = config.for_hugging_face()
        del values["architectures"]
        self.encoder = BertModel(AutoConfig.for_model(values.pop("model_type"), **values), add_pooling_layer=False)
        state = ours.encoder.state_dict()
        self.encoder.load_state_dict({KEYS.hugging_face_key(key): value for key, value in state.items()})
        self.heads = copy.deepcopy(ours.heads)
        self.padding = config.pad_token_id

    def forward(
        self, src_tokens: Tensor, segments: Tensor, rows: dict[str, Tensor], spans: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        real = src_tokens.ne(self.padding).long()
        hidden = self.encoder(input_ids=src_tokens, attention_mask=real, token_type_ids=segments).last_hidden_state
        outputs: dict[str, Tensor] = self.heads(hidden, rows, spans)
        return outputs


@dataclass
class System:
    """A model with its task, criterion and optimizer; a call is a training step on `sample`."""

    task: Any
    model: nn.Module
    criterion: Any
    optimizer: FairseqOptimizer
    sample: Sample | None = None

    def __call__(self) -> None:
        self.task.train_step(self.sample, self.model, self.criterion, self.optimizer, update_num=1)
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def loss(self, sample: Sample) -> Tensor:
        self.model.eval()
        loss, _, _ = self.criterion(self.model, self.task.for_models(sample, [self.model]))
        self.model.train()
        return torch.as_tensor(loss)


def systems(data: Path, encoder: Path, size: str) -> dict[str, System]:
    """Return all systems, which have equal losses as long as they are not trained.

    Args:
        data: a benchmark's folder.
        encoder: the pretrained encoder of all.
        size: the end of the architectures' names.
    """
    found: dict[str, System] = {}
    for name, (arch, options) in SYSTEMS.items():
        config = configuration(data, encoder, arch + size, "--sampling-method", "uniform", *options)
        system = system_of(config)
        if found:
            system.model.heads.load_state_dict(found[DENSE].model.heads.state_dict())
        found[name] = system
        if name == DENSE:
            found[PEER] = trained(system.task, PeerModel(system.model), config)
    return found


def system_of(config: Any) -> System:
    task = setup_task(config.task)
    torch.manual_seed(1)
    return trained(task, task.build_model(config.model), config)


def trained(task: Any, model: nn.Module, config: Any) -> System:
    """A model that trains, with the optimizer of what is not frozen of it, as in fairseq's trainer."""
    optimizer = build_optimizer(config.optimizer, [one for one in model.parameters() if one.requires_grad])
    return System(task, model.train(), task.build_criterion(config.criterion), optimizer)


def check_equal(found: dict[str, System], sample: Sample) -> None:
    losses = {name: system.loss(sample) for name, system in found.items()}
    right = next(iter(losses.values()))
    for name, loss in losses.items():
        torch.testing.assert_close(loss, right, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: name + text)


def batches(mixture: TrainingMixture, size: int, tasks: int = 1, seed: int = 1) -> Iterator[Sample]:
    """Batches of so many of the epoch's examples, of so many tasks at least, in a random order."""
    groups = mixture.epoch_batches(None, BatchLimits(None, size, 8))[0]
    for group in np.random.default_rng(seed).permutation(len(groups)):
        sample = mixture.collater([mixture[int(index)] for index in groups[group]])
        if sample["nsentences"] == size and len(sample["target"]) >= tasks:
            yield sample


def full(sample: Sample, length: int, vocabulary: int) -> Sample:
    """The same examples with as many tokens as may be, and so without padding."""
    shape = (len(sample["net_input"]["src_tokens"]), length)
    tokens = torch.randint(vocabulary // 2, vocabulary, shape, generator=torch.Generator().manual_seed(1))
    segments = (torch.arange(length) >= length // 2).long().expand(shape).contiguous()
    net_input = {**sample["net_input"], "src_tokens": tokens, "segments": segments}
    return {**sample, "net_input": net_input, "ntokens": tokens.numel()}
