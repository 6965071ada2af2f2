"""Training with fairseq's trainer where experts, other processes or the loss do what it was not written for."""
