"""The toy system."""

from fairseq_mtmoe.toy.model import ToyModel  # noqa: F401
