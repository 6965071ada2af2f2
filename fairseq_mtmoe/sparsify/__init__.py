"""Dense to sparse: in the middle of training, and offline."""
