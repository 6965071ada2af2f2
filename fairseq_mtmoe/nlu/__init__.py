"""Language understanding: encoders and T5, benchmarks' data, and their tasks."""
