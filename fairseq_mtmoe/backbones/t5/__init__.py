"""T5 with relative positions and slots in its blocks; reads and writes Hugging Face's folders."""
