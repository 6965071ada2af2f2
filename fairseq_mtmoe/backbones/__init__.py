"""One folder per backbone, with its blocks, which have slots, and its model."""
