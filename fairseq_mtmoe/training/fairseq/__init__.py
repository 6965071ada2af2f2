"""Replacements in fairseq, torch and the interpreter; `table.py` lists them."""
