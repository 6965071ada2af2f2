"""System 1, sparse translation.

Importing this package registers its models and architectures with fairseq.
"""

from fairseq_mtmoe.translation.base_sparse.model import BaseDenseModel, BaseMoEModel  # noqa: F401
