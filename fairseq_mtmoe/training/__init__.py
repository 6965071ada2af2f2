"""Training with fairseq's trainer where experts, other processes or the loss do what it was not written for."""

from fairseq_mtmoe.training.trainer import SparseTrainer, install

__all__ = ["SparseTrainer", "install"]
