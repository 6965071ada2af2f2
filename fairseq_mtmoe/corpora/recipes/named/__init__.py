"""Corpora that a recipe names: data sets of mtdata and sacreBLEU."""
