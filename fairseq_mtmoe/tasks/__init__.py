"""The tasks. Importing this package registers them and the criterions, which fairseq does not import itself."""

from fairseq_mtmoe.criterions import moe_label_smoothed_cross_entropy, multitask, pemt
from fairseq_mtmoe.tasks.glue import GlueTask
from fairseq_mtmoe.tasks.text_to_text import TextToTextTask
from fairseq_mtmoe.tasks.translation.task import TranslationHeatedTask

__all__ = [
    "GlueTask", "TextToTextTask", "TranslationHeatedTask", "moe_label_smoothed_cross_entropy", "multitask", "pemt",
]  # fmt: skip
