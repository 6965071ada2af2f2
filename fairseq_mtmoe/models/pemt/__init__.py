"""System 4, PEMT: importing this package registers it with fairseq."""

from fairseq_mtmoe.models.pemt.model import PemtT5Model

__all__ = ["PemtT5Model"]
