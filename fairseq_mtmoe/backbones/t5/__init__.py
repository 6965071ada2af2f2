"""T5: encoder and decoder with relative positions, blocks with slots, Hugging Face's folders."""
