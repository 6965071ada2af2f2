"""The pictures of a run, and the only place that draws: sampling over epochs, expert distribution per language over
training (figures 1, 3, 4 of "Tricks for Training Sparse Translation Models"), validation perplexity (figure 2); a
benchmark's metrics, how alike its tasks' gates are, how far gates moved; of CA-MTL how alike tasks look to a model
(figure 6), what uncertainty sampling trains on (figures 5 and 8), a map of the task embeddings; of PEMT what is
borrowed from which source (figure 4). Of evaluations, how far they are above the first.

Colours are Okabe and Ito's, or viridis where there are many lines: both can be told apart with any colour vision, and
in grey by their luminance. Line styles, markers and labels beside the lines say the same a second time.
"""

from fairseq_mtmoe.analysis.plots.differences import differences_figure
from fairseq_mtmoe.analysis.plots.embeddings import embeddings_figure
from fairseq_mtmoe.analysis.plots.experts import experts_figure
from fairseq_mtmoe.analysis.plots.gates import gates_figure, movement_figure
from fairseq_mtmoe.analysis.plots.metrics import metrics_figure
from fairseq_mtmoe.analysis.plots.perplexity import perplexity_figure
from fairseq_mtmoe.analysis.plots.sampling import sampling_figure
from fairseq_mtmoe.analysis.plots.selection import selection_figure
from fairseq_mtmoe.analysis.plots.sheet import save
from fairseq_mtmoe.analysis.plots.similarity import improvement_figure, similarity_figure
from fairseq_mtmoe.analysis.plots.sources import sources_figure

__all__ = [
    "differences_figure",
    "embeddings_figure",
    "experts_figure",
    "gates_figure",
    "improvement_figure",
    "metrics_figure",
    "movement_figure",
    "perplexity_figure",
    "sampling_figure",
    "save",
    "selection_figure",
    "similarity_figure",
    "sources_figure",
]
