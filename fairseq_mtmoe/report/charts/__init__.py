"""Charts from rows, in Altair: those of `mtmoe report`, page and pictures."""
