"""T5 as a fairseq model: its sizes, and loading a pretrained T5."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, ClassVar

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoderDecoderModel
from torch import LongTensor, Tensor, nn

from fairseq_mtmoe.checkpoints.key_maps import EMBEDDINGS, OUTPUT
from fairseq_mtmoe.core.errors import raise_invalid
from fairseq_mtmoe.core.protocols import TrainingModel
from fairseq_mtmoe.core.sizes import architecture_of, noted_sizes
from fairseq_mtmoe.nlu.t5.config import T5_BASE, T5_LARGE, T5_SMALL, T5Config
from fairseq_mtmoe.nlu.t5.stacks import T5Decoder, T5Encoder
from fairseq_mtmoe.slots.blocks import SlotPlans

# fairseq's names of the options for a T5's sizes.
SIZES = {
    "encoder_layers": "num_layers",
    "decoder_layers": "num_decoder_layers",
    "encoder_embed_dim": "d_model",
    "encoder_attention_heads": "num_heads",
}
# 60M, 220M and 770M parameters
PUBLISHED = {
    name: architecture_of(t5, SIZES)
    for name, t5 in {"small": T5_SMALL, "base": T5_BASE, "large": T5_LARGE}.items()
}


class T5Model(TrainingModel, FairseqEncoderDecoderModel):
    """A T5 with slots.

    With empty slots it computes what Hugging Face's `T5ForConditionalGeneration` computes.

    Token ids are those of fairseq's `dictionary`. Both stacks have the same `slot_plans`, empty for
    a dense model.
    """

    encoder_class: ClassVar[type[T5Encoder]] = T5Encoder
    decoder_class: ClassVar[type[T5Decoder]] = T5Decoder

    def __init__(
        self, config: T5Config, dictionary: Dictionary, slot_plans: SlotPlans | None = None
    ) -> None:
        embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        nn.init.normal_(embed_tokens.weight, std=config.initializer_factor)
        super().__init__(
            self.encoder_class(config, dictionary, embed_tokens, slot_plans or {}),
            self.decoder_class(config, dictionary, embed_tokens, slot_plans or {}),
        )
        self.config = config

    def forward(
        self,
        src_tokens: LongTensor,
        src_lengths: Tensor | None = None,
        prev_output_tokens: LongTensor | None = None,
        task_ids: LongTensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return logits (B, L, V) and extra output.

        Args:
            src_tokens: padded texts, (B, J).
            src_lengths: unused.
            prev_output_tokens: the decoder's input, `shifted` answers, (B, L).
            task_ids: each text's task, (B,), for slots that depend on tasks.
        """
        encoder_out = self.encoder(src_tokens, src_lengths, task_ids=task_ids)
        output: tuple[Tensor, dict[str, Any]] = self.decoder(prev_output_tokens, encoder_out)
        return output


def shifted(answers: LongTensor, config: T5Config) -> Tensor:
    """Return the decoder's input for `answers` (B, L), shifted right.

    It begins with T5's first token.
    """
    first = torch.full_like(answers[:, :1], config.decoder_start_token_id)
    return torch.cat([first, answers[:, :-1]], dim=1)


def whole_state(state: Mapping[str, Tensor], config: T5Config) -> dict[str, Tensor]:
    """Return a model's state with tied tensors under all their names."""
    whole = {**state, **dict.fromkeys(EMBEDDINGS, state[EMBEDDINGS[0]])}
    if config.tie_word_embeddings:
        whole[OUTPUT] = state[EMBEDDINGS[0]]
    return whole


def bare_state(state: Mapping[str, Any], config: T5Config) -> dict[str, Any]:
    """Return a state with each tied tensor once, the reverse of `whole_state`."""
    twice = {*EMBEDDINGS[1:], *((OUTPUT,) if config.tie_word_embeddings else ())}
    return {name: value for name, value in state.items() if name not in twice}


def note_sizes(cfg: Any, t5: T5Config) -> None:
    """Store a new model's sizes in its `T5Options`.

    Raises `UserError`: the architecture does not contain a T5.
    """
    if not isinstance(getattr(cfg, "t5", None), str):
        raise_invalid("--arch", "one with a T5, such as t5_base", getattr(cfg, "_name", None))
    cfg.t5 = json.dumps(asdict(t5))


def t5_config(cfg: Any) -> T5Config:
    """Return a model's sizes.

    Raises `UserError`: the task gives no T5, or a size differs from the T5's.
    """
    return replace(
        T5Config(**noted_sizes(cfg, "t5", SIZES, "T5", "text_to_text")), dropout_rate=cfg.dropout
    )


def begin(model: T5Model, task: Any) -> None:
    """Load the task's pretrained T5, if any, into a new model.

    Additions to a T5 keep their values.
    """
    if task.pretrained is not None and task.pretrained.state:
        state = whole_state(task.pretrained.state, model.config)
        missing, beyond = model.load_state_dict(state, strict=False)
        assert not beyond and not set(missing) & set(state)
