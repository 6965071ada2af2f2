"""System 4, PEMT: importing this package registers its models and architectures with fairseq."""

from fairseq_mtmoe.models.pemt.model import PemtBertModel, PemtT5Model, PemtTranslationModel  # isort: skip
from fairseq_mtmoe.models.pemt import architectures  # noqa: F401  # isort: skip

__all__ = ["PemtBertModel", "PemtT5Model", "PemtTranslationModel"]
