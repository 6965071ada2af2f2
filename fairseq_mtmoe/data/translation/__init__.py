"""Parallel text: the files of language pairs, their datasets, and the tiers in which pairs are reported."""
