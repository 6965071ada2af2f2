"""Convert pretrained translators between Hugging Face's folders and checkpoints."""
