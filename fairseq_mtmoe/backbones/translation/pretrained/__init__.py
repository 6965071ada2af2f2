"""Pretrained translators: convert Hugging Face's folders to our checkpoints and back."""
