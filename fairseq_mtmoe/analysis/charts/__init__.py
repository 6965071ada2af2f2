"""Charts from rows: one description each, by Altair, that is a file of `mtmoe plot` and a part of the report's page."""

from fairseq_mtmoe.analysis.charts.look import save

__all__ = ["save"]
