"""Sizes of a T5, named as in `config.json` of Hugging Face's folders."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from torch import Tensor
from torch.nn import functional as F

from fairseq_mtmoe.checkpoints.hugging_face import (
    MOST,
    Blocks,
    Dropout,
    Share,
    Size,
    TokenId,
    check_fields,
    config_of,
)
from fairseq_mtmoe.core.errors import raise_invalid
from fairseq_mtmoe.core.typed import between, one_of

T5 = "t5"
RELU = "relu"  # of T5 1.0
GATED_GELU = "gated-gelu"  # of T5 1.1
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    RELU: F.relu,
    GATED_GELU: partial(F.gelu, approximate="tanh"),
}


@dataclass(frozen=True)
class T5Config:
    """Sizes of a T5; defaults are T5 base's (1.0).

    Raises `UserError` for an impossible value.
    """

    model_type = T5  # not a field: it is the same for all

    vocab_size: Size = 32128
    d_model: Size = 768  # H
    d_kv: Size = 64  # width of a head; heads × width may differ from H
    d_ff: Size = 3072  # F
    num_layers: Blocks = 12
    num_decoder_layers: Blocks = 12
    num_heads: Size = 12
    relative_attention_num_buckets: Size = 32  # number of buckets of distances
    relative_attention_max_distance: Size = 128  # longer distances share a bucket
    dropout_rate: Dropout = 0.1
    layer_norm_epsilon: Share = 1e-6
    initializer_factor: Annotated[float, between(0, MOST)] = 1.0
    feed_forward_proj: Annotated[str, one_of(ACTIVATIONS)] = RELU  # or `gated-gelu` as in T5 1.1
    # The output layer shares the embeddings' weights; in T5 1.1 it has its own.
    tie_word_embeddings: bool = True
    pad_token_id: TokenId = 0
    eos_token_id: TokenId = 1
    decoder_start_token_id: TokenId = 0  # the decoder's first input
    # Scale states by H^-0.5 before the output layer; None: only if the layer is tied.
    scale_decoder_outputs: bool | None = None

    def __post_init__(self) -> None:
        if self.scale_decoder_outputs is None:
            object.__setattr__(self, "scale_decoder_outputs", self.tie_word_embeddings)
        check_fields(self)
        if self.num_heads * self.d_kv > MOST:
            raise_invalid("d_kv", f"at most {MOST} / num_heads", self.d_kv)
        buckets = self.relative_attention_num_buckets
        distance = self.relative_attention_max_distance
        if buckets % 4 or distance <= buckets // 2:
            rule = (
                f"a multiple of 4 and less than twice `relative_attention_max_distance` {distance}"
            )
            raise_invalid("relative_attention_num_buckets", rule, buckets)
        for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
            if getattr(self, name) >= self.vocab_size:
                raise_invalid(name, f"below `vocab_size` {self.vocab_size}", getattr(self, name))

    @property
    def is_gated(self) -> bool:
        """Return whether feed-forward layers have a gated activation."""
        return self.feed_forward_proj == GATED_GELU

    @property
    def output_scale(self) -> float:
        """Return the factor of the decoder's states before the output layer."""
        return 1 / math.sqrt(self.d_model) if self.scale_decoder_outputs else 1.0

    def for_hugging_face(self) -> dict[str, Any]:
        """Return the content of a `config.json` for all versions of `transformers`.

        Version 4 scales states if `tie_word_embeddings` is true; version 5 uses `lm_head.weight`.
        """
        return {
            "architectures": ["T5ForConditionalGeneration"],
            "model_type": T5,
            "is_encoder_decoder": True,
            **dataclasses.asdict(self),
            "tie_word_embeddings": self.scale_decoder_outputs,
        }


def read_config(values: Mapping[str, Any]) -> T5Config:
    """Return the sizes in a `config.json`, which may omit some."""
    optional = {field.name: field.default for field in dataclasses.fields(T5Config)[7:]}
    present = {name: value for name, value in values.items() if value is not None}
    return config_of(
        T5Config, {**optional, "num_decoder_layers": values.get("num_layers"), **present}
    )


# Published sizes of version 1.0
T5_SMALL = T5Config(d_model=512, d_ff=2048, num_layers=6, num_decoder_layers=6, num_heads=8)
T5_BASE = T5Config()
T5_LARGE = T5Config(d_model=1024, d_ff=4096, num_layers=24, num_decoder_layers=24, num_heads=16)
