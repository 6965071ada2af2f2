"""Training with fairseq's trainer: sharded experts, failures, signals, resumption, and non-finite losses."""
