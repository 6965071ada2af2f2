"""Language understanding: the task table, and examples from benchmarks' files."""
