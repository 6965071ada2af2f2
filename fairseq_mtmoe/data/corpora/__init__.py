"""Corpora: from human translations on disk to a data directory that stock `fairseq-train` reads.

By a recipe (`recipes`): read (`readers`), cleaned (`cleaning`), with a vocabulary (`vocabulary`), sharded and described
(`page`), all of it block by block (`blocks`) by `engine`, in constant memory. As it is: plain text that is split
already, or gettext catalogs (`catalogs`, gathered and split by `harvest`), by `build` from the same parts. None of it
needs fairseq or torch.
"""
