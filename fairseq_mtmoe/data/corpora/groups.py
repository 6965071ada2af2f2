"""Which messages are one for splitting: union-find over message keys."""

from __future__ import annotations


class Groups:
    """Disjoint sets of message keys (see `clean.message_key`); a key that was never joined is alone in its set."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, key: str) -> str:
        """The set's name: its smallest key, whatever the order of joins was."""
        while (parent := self._parent.get(key, key)) != key:
            self._parent[key] = self._parent.get(parent, parent)
            key = parent
        return key

    def join(self, first: str, second: str) -> None:
        """Make one set of the sets of two keys."""
        smaller, larger = sorted((self.find(first), self.find(second)))
        self._parent[larger] = smaller
