"""Cleaning: which sentence pairs are worth training on, and keys by which equal ones are found."""

from fairseq_mtmoe.data.corpora.cleaning.cleaner import (
    CHANGES,
    RULES,
    SAMPLES,
    Cleaned,
    Cleaner,
    Sample,
    asked,
    chosen,
    sample,
    unfiltered,
)
from fairseq_mtmoe.data.corpora.cleaning.keys import are_among, first_occurrences, sentence_keys

__all__ = [
    "CHANGES", "RULES", "SAMPLES", "Cleaned", "Cleaner", "Sample", "are_among", "asked", "chosen",
    "first_occurrences", "sample", "sentence_keys", "unfiltered",
]  # fmt: skip
