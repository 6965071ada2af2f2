"""System 2, task-aware gating.

Importing this package registers its models and architectures with fairseq.
"""

from fairseq_mtmoe.nlu.mt_tag.model import MTDenseModel, MTSwitchModel, MTTaGModel  # noqa: F401
