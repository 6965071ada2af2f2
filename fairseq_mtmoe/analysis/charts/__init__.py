"""Charts from rows, in Altair: files of `mtmoe plot`, parts of the report's page."""

from fairseq_mtmoe.analysis.charts.look import save

__all__ = ["save"]
