"""System 3, conditionally adaptive learning.

Importing this package registers it with fairseq.
"""

from fairseq_mtmoe.nlu.ca_mtl.model import CAMTLModel  # noqa: F401
