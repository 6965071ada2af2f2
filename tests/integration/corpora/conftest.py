"""Small raw corpora to prepare data from."""

from tests.helpers.raw_corpora import raw

__all__ = ["raw"]
