"""Sharded experts: their placement on ranks, token shuffle, and all-to-all."""
