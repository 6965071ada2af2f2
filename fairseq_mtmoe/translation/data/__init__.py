"""Parallel text: the files of language pairs, and their datasets."""
