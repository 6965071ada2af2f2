"""Language understanding: a table of tasks, and examples from the files that their authors distribute."""
