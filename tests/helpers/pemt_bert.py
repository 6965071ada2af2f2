"""Tiny encoders that learn source tasks or borrow from them, built as fairseq builds them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.backbones.bert.config import EncoderConfig
from fairseq_mtmoe.backbones.bert.model import note_sizes
from fairseq_mtmoe.backbones.bert.pretrained import PretrainedEncoder
from fairseq_mtmoe.protocols import TaskDescription
from tests.helpers.bert import TINY, pretrained
from tests.helpers.encoders import HEADS, NO_DROPOUT
from tests.helpers.pemt import BOTTLENECK, DESCRIPTIONS, TARGET

from fairseq_mtmoe.models.pemt.config import PemtBertConfig  # isort: skip
from fairseq_mtmoe.models.pemt.model import PemtBertModel  # isort: skip


def bert_options(config: EncoderConfig = TINY, **options: Any) -> PemtBertConfig:
    """The options of a tiny model; those of a checkpoint have `pemt`, too."""
    scale = {} if options.get("adapter") == BOTTLENECK else {"adapter_alpha": 6.0}
    cfg = PemtBertConfig(**{"adapter_rank": 3, **NO_DROPOUT, **scale, **options})
    note_sizes(cfg, config, HEADS)
    return cfg


def pemt_encoder(
    seed: int = 1, name: str = TARGET, config: EncoderConfig = TINY, state: dict[str, Tensor] | None = None,
    **options: Any,
) -> PemtBertModel:  # fmt: skip
    """A new model in evaluation mode, whose encoder is always the same, or of this state."""
    cfg = bert_options(config, **options)
    described = TaskDescription(name, f"Say {name}.", DESCRIPTIONS[name])
    encoder = pretrained(config) if state is None else PretrainedEncoder(config, {}, state)
    task = SimpleNamespace(pretrained=encoder, begins_with_checkpoint=False, described=lambda: described)
    torch.manual_seed(seed)
    return PemtBertModel.build_model(cfg, task).eval()
