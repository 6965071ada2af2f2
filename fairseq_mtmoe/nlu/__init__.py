"""Language understanding: encoders, T5, and the data and tasks of benchmarks."""
