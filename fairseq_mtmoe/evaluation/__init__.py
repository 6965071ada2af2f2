"""Translating the test sets of a data directory with a model that is loaded once, as fairseq-generate would."""
