"""Several tasks under one index, and batches that know the task of each of their examples."""
