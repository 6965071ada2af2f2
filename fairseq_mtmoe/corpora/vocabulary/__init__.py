"""The vocabulary of all languages: a model trained or given, and what it makes of each language."""
