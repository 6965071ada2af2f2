"""Everything that this package replaces in fairseq, torch and the interpreter: `table.py` lists it, and applies it."""
