"""T5: encoder and decoder with relative positions, blocks with the seams that all backbones have, Hugging Face's folders."""
