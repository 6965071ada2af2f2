"""Corpora: from human translations on disk to a data directory that stock `fairseq-train` reads.

By a recipe (`recipes`): read (`readers`), cleaned (`cleaning`), with a vocabulary (`vocabulary`), sharded and described
(`page`), all of it block by block (`blocks`) by `engine`, in constant memory.

As it is: plain text that is split already (`text`), or gettext catalogs (`catalogs`, cleaned by `messages`, gathered
by `harvest`, split by `split`), made a data directory of by `build`, from the same parts, with a report (`report`).

Both write binarized files by `binarize`, and are put in place in one move by `data_dir`. None of it needs fairseq or
torch.
"""
