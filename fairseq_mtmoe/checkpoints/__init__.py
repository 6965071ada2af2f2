"""Checkpoints: reading and writing them safely, and making sparse ones of dense ones."""
