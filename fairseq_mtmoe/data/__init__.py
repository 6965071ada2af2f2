"""Data: corpora, which sentences an epoch draws from which task, and the datasets that batch them."""
