"""Recipes: which corpora a data directory is made of, and how."""

SHIPPED = ("wmt15", "ml50", "catalogs", "folder", "flores200", "ntrex")  # recipes of this package
