"""Checkpoints: safe reading and writing, shards, and sparse ones from dense ones."""
