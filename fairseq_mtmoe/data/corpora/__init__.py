"""Corpora: from human translations on disk to a data directory that stock `fairseq-train` reads.

Of any size, by a recipe (`recipes`): read (`readers`), cleaned (`cleaning`), with a vocabulary (`vocabulary`), sharded
and described (`page`), all of it block by block (`blocks`) by `engine`.

Small enough for memory: gettext catalogs (`catalogs`, cleaned by `clean`, split by `split`) or plain text that is split
already (`text`); then one SentencePiece model (`spm`), and a report (`report`), assembled by `build`.

Both write binarized files by `binarize`, and are put in place in one move by `directory`. None of it needs fairseq or
torch.
"""
