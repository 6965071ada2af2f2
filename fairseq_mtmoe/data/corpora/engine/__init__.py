"""From a recipe and raw files to a data directory (`pipeline.prepare`): streaming, restartable, by any workers."""
