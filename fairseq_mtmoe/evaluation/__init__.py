"""Models that translate test sets and text, and predict benchmarks' sets."""
