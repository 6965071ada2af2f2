"""Decoding: translating test sets and text, and scoring given translations."""
