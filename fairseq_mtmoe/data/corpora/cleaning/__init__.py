"""Cleaning: which sentence pairs are worth training on, and keys by which equal ones are found."""
