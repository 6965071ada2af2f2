"""T5 with relative positions and slots in its blocks.

Reads and writes Hugging Face's folders.
"""
