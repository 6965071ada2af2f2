"""Option dataclasses that several models share."""
