"""The vocabulary of all languages: its text, a model trained or given, and what it makes of each language."""

from fairseq_mtmoe.data.corpora.vocabulary.pieces import Pieces, count_characters, known_characters, load, table
from fairseq_mtmoe.data.corpora.vocabulary.training import sample_lines, train

__all__ = ["Pieces", "count_characters", "known_characters", "load", "sample_lines", "table", "train"]
