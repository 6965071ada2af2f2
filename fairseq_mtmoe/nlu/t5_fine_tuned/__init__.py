"""A T5 whose weights all train. Importing this package registers it with fairseq."""

from fairseq_mtmoe.nlu.t5_fine_tuned.model import FineTunedT5  # noqa: F401
