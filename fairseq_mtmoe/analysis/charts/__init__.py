"""Charts from rows, in Altair: the pictures and the charts of the page of `mtmoe report`."""

from fairseq_mtmoe.analysis.charts.look import save, spec_of

__all__ = ["save", "spec_of"]
