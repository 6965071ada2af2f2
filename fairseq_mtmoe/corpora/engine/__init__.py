"""Preparation of a data directory from a recipe and raw files in four stages."""
