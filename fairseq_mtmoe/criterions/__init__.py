"""The criterions. fairseq imports none of a `--user-dir`: `fairseq_mtmoe.tasks` does."""
