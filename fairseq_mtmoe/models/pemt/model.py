"""PEMT on T5: adapters of source tasks beside all feed-forward layers, mixed by what the target shares with them.

Implements "PEMT: Multi-Task Correlation Guided Mixture-of-Experts Enables Parameter-Efficient Transfer Learning", §3.
"""

from __future__ import annotations

from fairseq_mtmoe.backbones.t5.model import T5Model
from fairseq_mtmoe.models.pemt.borrowing import PemtModel
from fairseq_mtmoe.models.pemt.t5 import PemtT5Decoder, PemtT5Encoder


class PemtT5Model(PemtModel, T5Model):
    """A T5 that learns a source task, or borrows from some."""

    encoder_class = PemtT5Encoder
    decoder_class = PemtT5Decoder
