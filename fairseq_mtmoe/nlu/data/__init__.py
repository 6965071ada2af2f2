"""Language understanding: the task table, and examples from the benchmarks' own files."""
