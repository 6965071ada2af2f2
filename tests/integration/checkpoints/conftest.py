"""A small sparse checkpoint, whole and in parts."""

from tests.helpers.states import checkpoint, parts

__all__ = ["checkpoint", "parts"]
