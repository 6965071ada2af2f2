"""Optimizers, and an optimizer's state by parameter name. Importing `fused_adam` registers it with fairseq."""
