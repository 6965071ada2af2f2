"""The toy system."""

from fairseq_mtmoe.models.toy.model import ToyModel  # noqa: F401
