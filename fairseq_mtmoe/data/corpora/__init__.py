"""Corpora: from human translations on disk to a data directory that stock `fairseq-train` reads.

Two ways in, one pipeline: gettext catalogs (`catalogs`, cleaned by `clean`, split by `split`) or plain text that is
split already (`text`); then one SentencePiece model (`spm`), binarizing with fairseq's own code (`binarize`), and a
report (`report`), assembled by `build` and put in place in one move by `directory`.

Everything but `binarize` is free of fairseq and torch.
"""
