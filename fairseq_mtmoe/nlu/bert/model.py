"""A fairseq model: a BERT encoder with a head for each task."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from fairseq.models import BaseFairseqModel
from torch import LongTensor, Tensor

from fairseq_mtmoe.conditioning import conditional_names, with_new_conditions
from fairseq_mtmoe.core.errors import raise_invalid
from fairseq_mtmoe.core.options import value_of
from fairseq_mtmoe.core.protocols import TrainingModel
from fairseq_mtmoe.core.sizes import architecture_of, noted_sizes
from fairseq_mtmoe.core.transformer_options import EncoderOptions
from fairseq_mtmoe.nlu.bert import config as published
from fairseq_mtmoe.nlu.bert.config import EncoderConfig
from fairseq_mtmoe.nlu.bert.encoder import BertEncoder, Encoded
from fairseq_mtmoe.nlu.bert.heads import HeadSize, TaskHeads, heads_to_text, transferred
from fairseq_mtmoe.slots.blocks import Conditions, SlotPlans

# fairseq's names of the options for an encoder's sizes.
SIZES = {
    "encoder_layers": "num_hidden_layers",
    "encoder_embed_dim": "hidden_size",
    "encoder_ffn_embed_dim": "intermediate_size",
    "encoder_attention_heads": "num_attention_heads",
}
HALF = "half"  # of the blocks
# 22M, 110M and 345M parameters; RoBERTa has the sizes of BERT base and large
MINILM, BASE, LARGE = (
    architecture_of(each, SIZES)
    for each in (published.MINILM, published.BERT_BASE, published.BERT_LARGE)
)


class EncoderModel(TrainingModel, BaseFairseqModel):
    """An encoder that all tasks share, with a head for each task in order of task ids."""

    accepts_task_ids = True
    # Tasks of a checkpoint whose mean gate all tasks start from; see `transferred`.
    reuse_gate: str | None = None

    def __init__(self, encoder: BertEncoder, heads: Mapping[str, HeadSize]) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = TaskHeads(encoder.config.hidden_size, heads)

    def forward(
        self,
        src_tokens: LongTensor,
        segments: LongTensor,
        rows: Mapping[str, Tensor],
        spans: Mapping[str, Tensor],
        task_ids: LongTensor | None = None,
    ) -> dict[str, Tensor]:
        """Return each task's outputs (E_t, …) by name.

        See `TaskHeads` and `nlu.data.dataset.TaskCollate`.

        Args:
            src_tokens, segments: R padded rows of tokens and the type of each token, (R, L).
            rows: the row of each candidate, by task, (E_t, C).
            spans: start and end of the words or part of the text that the head reads, by task,
                (E_t, W, 2).
            task_ids: the task of each row, (R,).
        """
        kinds = self.encoder.config.type_vocab_size
        without_words = all(words.shape[1] == 0 for words in spans.values())
        encoded: Encoded = self.encoder(
            src_tokens,
            segments if kinds > 1 else None,
            task_ids=task_ids,
            firsts_only=without_words,
        )
        outputs: dict[str, Tensor] = self.heads(encoded.hidden, rows, spans)
        return {**outputs, **self.extra(encoded)}

    def load_state_dict(  # fairseq's
        self,
        state_dict: dict[str, Tensor],
        strict: bool = True,
        model_cfg: Any = None,
        args: Any = None,
    ) -> Any:
        """Load as fairseq does, after `transferred`.

        Conditional parts that are not in the state keep their values.
        """
        state = with_new_conditions(self, transferred(self, state_dict, self.reuse_gate))
        return super().load_state_dict(state, strict)

    def extra(self, encoded: Encoded) -> dict[str, Tensor]:
        """Return further outputs, under names that no task has."""
        return {}


def note_sizes(cfg: Any, encoder: EncoderConfig, heads: Mapping[str, HeadSize]) -> None:
    """Store a new model's sizes in its `EncoderOptions`.

    Raises `UserError`: the architecture has no heads.
    """
    if not isinstance(getattr(cfg, "heads", None), str):
        raise_invalid(
            "--arch",
            "a model with a head for each task, such as mt_tag_minilm",
            getattr(cfg, "_name", None),
        )
    cfg.encoder = json.dumps(asdict(encoder))
    cfg.heads = heads_to_text(heads)


def encoder_config(cfg: Any) -> EncoderConfig:
    """Return a model's sizes.

    Raises `UserError`: the task gives no encoder, or a size differs from the encoder's.
    """
    return replace(
        EncoderConfig(**noted_sizes(cfg, "encoder", SIZES, "encoder", "glue")),
        hidden_dropout_prob=cfg.dropout,
        attention_probs_dropout_prob=cfg.attention_dropout,
        has_pooler=False,  # heads read [CLS]'s own state
    )


def build_encoder(cfg: Any, task: Any, slot_plans: SlotPlans | None = None) -> BertEncoder:
    """Return a new model's encoder, with the task's `pretrained` weights if any.

    Raises `UserError`: wrong options.
    """
    config = encoder_config(cfg)
    conditions = Conditions.of(cfg, config.hidden_size)
    encoder = BertEncoder(config, slot_plans, cfg.checkpoint_activations, conditions)
    state = pretrained_state(task)
    if state:
        encoder.load_state_dict(with_new_conditions(encoder, state))
    freeze(encoder, frozen_blocks(cfg, config.num_hidden_layers))
    return encoder


def pretrained_state(task: Any) -> dict[str, Tensor]:
    """Return the pretrained encoder's weights without a pooler.

    Empty if a checkpoint's weights follow.
    """
    state = {} if task.pretrained is None else task.pretrained.state
    return {name: value for name, value in state.items() if not name.startswith("pooler.")}


def freeze(encoder: BertEncoder, num_blocks: int) -> None:
    """Freeze the lowest blocks and, above 0, the embeddings.

    Conditional parts still train.
    """
    if not num_blocks:
        return
    frozen = (
        "embed_",
        "layernorm_embedding.",
        *(f"layers.{index}." for index in range(num_blocks)),
    )
    adapts = set(conditional_names(encoder))
    for name, parameter in encoder.named_parameters():
        if name.startswith(frozen) and name not in adapts:
            parameter.requires_grad_(False)


def frozen_blocks(cfg: Any, num_blocks: int) -> int:
    """Return the number of blocks in `--freeze-layers`.

    Raises `UserError`: more than the encoder has.
    """
    frozen = str(value_of(cfg, EncoderOptions, "freeze_layers"))
    if frozen == HALF:
        return num_blocks // 2
    if not frozen.isdecimal() or int(frozen) > num_blocks:
        raise_invalid(
            "--freeze-layers",
            f"{HALF}, or a number of blocks up to the encoder's {num_blocks}",
            frozen,
        )
    return int(frozen)
