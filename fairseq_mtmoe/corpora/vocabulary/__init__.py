"""The vocabulary of all languages: a model, trained or given.

Figures tell how it splits each language.
"""
