"""One folder per backbone: its blocks, with slots in them, and its model."""
