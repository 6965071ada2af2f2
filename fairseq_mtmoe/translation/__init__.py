"""Translation: models, data, the task, and decoding."""
