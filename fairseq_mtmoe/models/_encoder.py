"""A BERT encoder with a head for each task, as a fairseq model."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from fairseq.models import BaseFairseqModel
from torch import LongTensor, Tensor

from fairseq_mtmoe.backbones.bert.config import EncoderConfig
from fairseq_mtmoe.backbones.bert.encoder import BertEncoder
from fairseq_mtmoe.backbones.bert.heads import HeadSize, TaskHeads, heads_to_text
from fairseq_mtmoe.errors import UserError, must_be
from fairseq_mtmoe.protocols import GivesEncoder

# fairseq's names of the options for an encoder's sizes.
SIZES = {
    "encoder_layers": "num_hidden_layers",
    "encoder_embed_dim": "hidden_size",
    "encoder_ffn_embed_dim": "intermediate_size",
    "encoder_attention_heads": "num_attention_heads",
}


class EncoderModel(BaseFairseqModel):
    """An encoder and its heads.

    Args:
        encoder: of all tasks.
        heads: each task's head, in the order of the task ids.
    """

    accepts_task_ids = True

    def __init__(self, encoder: BertEncoder, heads: Mapping[str, HeadSize]) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = TaskHeads(encoder.config.hidden_size, heads)

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the options of the model's own dataclass; defaults are left to the architecture."""
        BaseFairseqModel.add_args.__func__(cls, parser)

    def forward(
        self,
        src_tokens: LongTensor,
        segments: LongTensor,
        rows: Mapping[str, Tensor],
        spans: Mapping[str, Tensor],
        task_ids: LongTensor | None = None,
    ) -> dict[str, Tensor]:
        """Each task's numbers (E_t, outputs), by its name; see `TaskHeads` and `data.nlu.dataset.TaskCollate`.

        Args:
            src_tokens: (R, L), padded.
            segments: the type of each token, (R, L).
            rows: of each task's candidates, (E_t, C).
            spans: of the words of each task's examples, (E_t, W, 2).
            task_ids: of each row, (R,).
        """
        kinds = self.encoder.config.type_vocab_size
        without_words = all(words.shape[1] == 0 for words in spans.values())
        hidden = self.encoder(
            src_tokens, segments if kinds > 1 else None, task_ids=task_ids, firsts_only=without_words
        ).hidden
        outputs: dict[str, Tensor] = self.heads(hidden, rows, spans)
        return outputs


def note_sizes(cfg: Any, encoder: EncoderConfig, heads: Mapping[str, HeadSize]) -> None:
    """Note in a new model's configuration what it is built with, and its checkpoints are built with again.

    Args:
        cfg: with `EncoderOptions`; fairseq gives models a copy of it, so that the task does this.
        encoder: the pretrained encoder's sizes.
        heads: each task's, in the order of the task ids.

    Raises:
        UserError: it is another model's.
    """
    if not isinstance(getattr(cfg, "heads", None), str):
        must_be("--arch", "a model with a head for each task, such as mt_tag_minilm", getattr(cfg, "_name", None))
    for name, text in (("encoder", json.dumps(asdict(encoder))), ("heads", heads_to_text(heads))):
        setattr(cfg, name, text)


def encoder_config(cfg: Any) -> EncoderConfig:
    """The sizes of a model's encoder.

    Raises:
        UserError: the task gives no encoder, or a size is another one than the encoder's.
    """
    if not cfg.encoder:
        raise UserError("`--task` must be one that gives a model its encoder, such as `--task glue`, but gives none.")
    known = json.loads(cfg.encoder)
    for option, name in SIZES.items():
        given = getattr(cfg, option)
        if given is not None and given != known[name]:
            must_be(f"--{option.replace('_', '-')}", f"{known[name]}, as in the pretrained encoder", given)
    return replace(
        EncoderConfig(**known),
        hidden_dropout_prob=cfg.dropout,
        attention_probs_dropout_prob=cfg.attention_dropout,
        has_pooler=False,  # heads read [CLS]'s own state
    )


def load_pretrained(encoder: BertEncoder, task: GivesEncoder) -> None:
    """Give a new model's encoder the pretrained one's weights, if there are any."""
    if task.pretrained is not None and task.pretrained.state:
        state = {name: value for name, value in task.pretrained.state.items() if not name.startswith("pooler.")}
        encoder.load_state_dict(state)
