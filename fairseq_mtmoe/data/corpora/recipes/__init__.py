"""Recipes: which corpora a data directory is made of, and how."""

from fairseq_mtmoe.data.corpora.recipes.loading import SHIPPED, load_recipe
from fairseq_mtmoe.data.corpora.recipes.recipe import Recipe
from fairseq_mtmoe.data.corpora.recipes.schema import (
    Action,
    Corpus,
    Filters,
    HeldOut,
    Role,
    Shards,
    Spelling,
    Vocabulary,
    mbart_code,
    plain_code,
)

__all__ = [
    "SHIPPED", "Action", "Corpus", "Filters", "HeldOut", "Recipe", "Role", "Shards", "Spelling", "Vocabulary",
    "load_recipe", "mbart_code", "plain_code",
]  # fmt: skip
