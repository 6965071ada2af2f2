"""Recipes: which corpora a data directory is made of, and how."""
