"""Cleaning: filters of sentence pairs, and keys for finding equal ones."""
