"""Models that are loaded once: translating test sets as fairseq-generate would, predicting a benchmark's."""
