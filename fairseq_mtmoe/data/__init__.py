"""Data: corpora to train on, which sentences an epoch draws from which language pair, and the datasets that batch them.

`sampling` and `corpora` are free of fairseq; the modules `multilingual…` are fairseq datasets.
"""
