"""System 4, PEMT.

Importing this package registers its models, architectures and criterion with fairseq.
"""

from fairseq_mtmoe.pemt.criterion import PemtCriterion  # noqa: F401
from fairseq_mtmoe.pemt.model import PemtBertModel, PemtT5Model, PemtTranslationModel  # noqa: F401
