"""Charts from rows: one description each, by Altair, that is a file of `mtmoe plot` and a part of the report's page.

`look.py` has the shapes (lines, bars, heat maps), `runs.py` the charts of run logs, `models.py` those of checkpoints
and evaluations. Colours are Okabe and Ito's, or viridis where there are many lines: both can be told apart with any
colour vision, and in grey by their luminance. Dashes say the same a second time.
"""

from fairseq_mtmoe.analysis.charts.look import save

__all__ = ["save"]
