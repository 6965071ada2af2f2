"""The battery's rows: every module of this folder has `ROWS`, the rows of one system."""
