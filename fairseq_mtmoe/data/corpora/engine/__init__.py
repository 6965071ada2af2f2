"""Preparation of a data directory from a recipe and raw files (`pipeline.prepare`): streaming and restartable."""
