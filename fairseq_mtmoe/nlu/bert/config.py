"""Sizes of an encoder, named as in `config.json` of Hugging Face's folders."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor
from torch.nn import functional as F

from fairseq_mtmoe.checkpoints.hugging_face import (
    Blocks,
    Dropout,
    Share,
    Size,
    TokenId,
    check_fields,
    config_of,
)
from fairseq_mtmoe.core.errors import raise_invalid
from fairseq_mtmoe.core.typed import one_of

BERT = "bert"
ROBERTA = "roberta"
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}

PADDING = {BERT: 0, ROBERTA: 1}
# Fields that other kinds of encoders set -> the only value that we compute
UNSUPPORTED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes of an encoder; defaults are BERT base's.

    Raises `UserError` for an impossible value.
    """

    # `roberta`'s positions start after `pad_token_id` and skip padding
    model_type: Annotated[str, one_of(PADDING)] = BERT
    vocab_size: Size = 30522
    hidden_size: Size = 768  # H
    num_hidden_layers: Blocks = 12
    num_attention_heads: Size = 12
    intermediate_size: Size = 3072  # F
    max_position_embeddings: Size = 512
    type_vocab_size: Size = 2
    pad_token_id: TokenId = 0
    hidden_act: Annotated[str, one_of(ACTIVATIONS)] = "gelu"
    hidden_dropout_prob: Dropout = 0.1
    attention_probs_dropout_prob: Dropout = 0.1
    layer_norm_eps: Share = 1e-12
    initializer_range: Share = 0.02
    # Linear map of the first token's state. Some published encoders lack it, and no head reads it.
    has_pooler: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        heads = self.num_attention_heads
        if self.hidden_size % heads:
            raise_invalid(
                "hidden_size", f"a multiple of `num_attention_heads` {heads}", self.hidden_size
            )
        if self.pad_token_id >= self.vocab_size:
            raise_invalid(
                "pad_token_id", f"below `vocab_size` {self.vocab_size}", self.pad_token_id
            )
        if self.max_positions < 1:
            rule = f"above `pad_token_id` + 1 = {self.first_position}, where positions start"
            raise_invalid("max_position_embeddings", rule, self.max_position_embeddings)

    @property
    def first_position(self) -> int:
        """Return the position of a sentence's first token."""
        return self.pad_token_id + 1 if self.model_type == ROBERTA else 0

    @property
    def max_positions(self) -> int:
        """Return the maximum number of tokens in a sentence."""
        return self.max_position_embeddings - self.first_position

    def for_hugging_face(self) -> dict[str, Any]:
        """Return the content of a `config.json`."""
        values = dataclasses.asdict(self)
        del values["has_pooler"]
        kind = {BERT: "BertModel", ROBERTA: "RobertaModel"}[self.model_type]
        return {"architectures": [kind], **values}


def read_config(values: Mapping[str, Any], has_pooler: bool) -> EncoderConfig:
    """Return the sizes in a `config.json`.

    Raises `UserError`: it belongs to another kind of model, or lacks a size.
    """
    for name, needed in UNSUPPORTED.items():
        if values.get(name, needed) != needed:
            raise_invalid(name, repr(needed), values[name])
    optional = {field.name: field.default for field in dataclasses.fields(EncoderConfig)[9:]}
    padding = {"pad_token_id": PADDING[values["model_type"]]}
    return config_of(EncoderConfig, {**optional, **padding, **values, "has_pooler": has_pooler})


# The encoders of MT-TaG, §3.
MINILM = EncoderConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536)
BERT_BASE = EncoderConfig()
BERT_LARGE = EncoderConfig(
    hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
)
