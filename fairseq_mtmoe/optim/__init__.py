"""Optimizers. Importing this package registers them with fairseq."""

from fairseq_mtmoe.optim.fused_adam import FairseqFusedAdam, FusedAdam

__all__ = ["FairseqFusedAdam", "FusedAdam"]
