"""Replacements in fairseq, torch and the interpreter: `table.py` lists and applies them."""
