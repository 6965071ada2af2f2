"""Several tasks under one index, and batches with the task of each example."""
