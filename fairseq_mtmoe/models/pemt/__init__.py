"""System 4, PEMT: importing this package registers its models and architectures with fairseq."""

from fairseq_mtmoe.models.pemt.bert import PemtBertModel
from fairseq_mtmoe.models.pemt.model import PemtT5Model
from fairseq_mtmoe.models.pemt.translation import PemtTranslationModel

__all__ = ["PemtBertModel", "PemtT5Model", "PemtTranslationModel"]
