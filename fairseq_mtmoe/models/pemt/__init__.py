"""System 4, PEMT.

Importing this package registers its models and architectures with fairseq.
"""

from fairseq_mtmoe.models.pemt.model import PemtBertModel, PemtT5Model, PemtTranslationModel  # noqa: F401
