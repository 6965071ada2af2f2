"""Dense to sparse: during training, and offline."""
