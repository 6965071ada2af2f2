"""A T5 whose weights all train. Importing this package registers it with fairseq."""

from fairseq_mtmoe.models.t5.model import FineTunedT5  # noqa: F401
