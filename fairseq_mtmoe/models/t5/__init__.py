"""T5, all of which is trained: importing this package registers it with fairseq."""

from fairseq_mtmoe.models.t5.model import FineTunedT5  # noqa: F401
