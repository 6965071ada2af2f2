"""Training with fairseq's trainer.

The folder adds sharded experts, failures, signals, resumption and non-finite losses.
"""
