"""Translators that were trained elsewhere: folders of Hugging Face's as checkpoints of ours, and back."""
