"""Run logs, scores, tables and charts, without fairseq; only `charts` draws."""
