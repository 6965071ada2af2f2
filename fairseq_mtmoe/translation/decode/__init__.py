"""Decoding: models that translate test sets and text, and score given translations."""
