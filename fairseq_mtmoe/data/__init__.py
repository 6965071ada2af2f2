"""Data: corpora to train on, which sentences an epoch draws from which task, and the datasets that batch them.

`sampling` and `corpora` are free of fairseq; `mixtures` and `translation` are fairseq datasets.
"""
