"""Tasks that are asked in text and answered in text, as by T5."""
