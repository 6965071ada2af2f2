"""System 4, PEMT: importing this package registers its models and architectures with fairseq."""

from fairseq_mtmoe.models.pemt.model import PemtT5Model
from fairseq_mtmoe.models.pemt.translation import PemtTranslationModel

__all__ = ["PemtT5Model", "PemtTranslationModel"]
