"""What all models on a pretrained T5 share: its sizes, and its weights where a new one begins."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fairseq.models import register_model_architecture

from fairseq_mtmoe.backbones.t5.config import T5Config
from fairseq_mtmoe.backbones.t5.model import T5Model
from fairseq_mtmoe.backbones.t5.model_file import whole_state
from fairseq_mtmoe.errors import UserError, must_be

# fairseq's names of the options for a T5's sizes.
SIZES = {
    "encoder_layers": "num_layers",
    "decoder_layers": "num_decoder_layers",
    "encoder_embed_dim": "d_model",
    "encoder_attention_heads": "num_heads",
}


def note_sizes(cfg: Any, t5: T5Config) -> None:
    """Note in a new model's configuration what it is built with, and its checkpoints are built with again.

    Args:
        cfg: with `T5Options`; fairseq gives models a copy of it, so that the task does this.
        t5: the pretrained model's sizes.

    Raises:
        UserError: it is another model's.
    """
    if not isinstance(getattr(cfg, "t5", None), str):
        must_be("--arch", "a model on a T5, such as t5_base", getattr(cfg, "_name", None))
    cfg.t5 = json.dumps(t5.sizes)


def t5_config(cfg: Any) -> T5Config:
    """The sizes of a model's T5.

    Raises:
        UserError: the task gives no T5, or a size is another one than the T5's.
    """
    if not cfg.t5:
        raise UserError(
            "`--task` must be one that gives a model its T5, such as `--task text_to_text`, but gives none."
        )
    known = json.loads(cfg.t5)
    for option, name in SIZES.items():
        given = getattr(cfg, option)
        if given is not None and given != known[name]:
            must_be(
                f"--{option.replace('_', '-')}",
                f"{known[name]}, as in the pretrained T5 (--arch t5 and pemt_t5 take any)",
                given,
            )
    return replace(T5Config(**known), dropout_rate=cfg.dropout)


def begin(model: T5Model, task: Any) -> None:
    """Give a new model the pretrained T5's weights, if the task has some; what it has beside a T5 stays.

    Args:
        model: of the T5's sizes.
        task: whose `pretrained` is the T5; None where a checkpoint's weights follow.
    """
    if task.pretrained is not None and task.pretrained.state:
        state = whole_state(task.pretrained.state, model.config)
        missing, beyond = model.load_state_dict(state, strict=False)
        assert not beyond and not set(missing) & set(state)


def register_sizes(model_name: str, sizes: Mapping[str, Callable[[Any], None]]) -> None:
    """Register every `model_name_SIZE`; `model_name` itself has the sizes of the pretrained T5."""
    for suffix, size in sizes.items():
        register_model_architecture(model_name, f"{model_name}_{suffix}")(size)


def small(args: Any) -> None:
    """T5 small: 6 blocks each of 512, 60M parameters."""
    _default(args, 6, 512, 8)


def base(args: Any) -> None:
    """T5 base: 12 blocks each of 768, 220M parameters."""
    _default(args, 12, 768, 12)


def large(args: Any) -> None:
    """T5 large: 24 blocks each of 1024, 770M parameters."""
    _default(args, 24, 1024, 16)


PUBLISHED = {"small": small, "base": base, "large": large}


def _default(args: Any, layers: int, width: int, heads: int) -> None:
    for option, value in zip(SIZES, (layers, layers, width, heads), strict=True):
        setattr(args, option, getattr(args, option, None) or value)
