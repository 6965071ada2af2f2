"""Options of models on a T5, under fairseq's names for a transformer's sizes."""

from argparse import SUPPRESS
from dataclasses import dataclass, field
from typing import Optional


@dataclass
class T5Options:
    """Mixed into the configuration of every model on a T5; `backbones/t5/model.py` reads it.

    Sizes that are not given are the pretrained model's; those that are must agree with it.
    """

    encoder_layers: Optional[int] = field(
        default=None, metadata={"help": "blocks of the encoder (default: the pretrained T5's)"}
    )
    decoder_layers: Optional[int] = field(
        default=None, metadata={"help": "blocks of the decoder (default: the pretrained T5's)"}
    )
    encoder_embed_dim: Optional[int] = field(
        default=None, metadata={"help": "width of both (default: the pretrained T5's)"}
    )
    encoder_attention_heads: Optional[int] = field(
        default=None, metadata={"help": "heads of attention (default: the pretrained T5's)"}
    )
    dropout: float = field(default=0.1, metadata={"help": "dropout of states, inner values and attention weights"})
    # All sizes of the T5, in JSON, which the task fills in
    t5: str = field(default="", metadata={"help": SUPPRESS})
