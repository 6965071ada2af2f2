"""fairseq's encoder-decoder transformer, whose blocks have slots."""
