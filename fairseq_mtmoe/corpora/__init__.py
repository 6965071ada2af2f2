"""Corpora: human translations become a data directory for `fairseq-train`.

Memory use is constant.
"""
