"""Corpora: human translations on disk become a data directory that stock `fairseq-train` reads, in constant memory."""
