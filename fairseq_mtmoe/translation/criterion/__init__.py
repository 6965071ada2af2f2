"""The loss of translation, computed without all logits at once."""
