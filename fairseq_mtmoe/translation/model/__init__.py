"""fairseq's encoder-decoder transformer with slots in its blocks."""
