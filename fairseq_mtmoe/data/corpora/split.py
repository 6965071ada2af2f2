"""Splitting by English message: nothing that is tested on, in whatever language, was trained on in any language.

Two messages are the same if their `messages.message_key` is, or if one is the plural of the other. Which ones are held
out is decided by hash, so it depends on the seed and the messages alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice

from fairseq_mtmoe.errors import UserError

EVALUATION = ("test", "valid")

MIN_TRAINING_SHARE = 0.5
"""A language is taken without being asked for if at least this share of its messages is left for training."""

Pairs = Sequence[tuple[str, str]]


class DedupGroups:
    """Disjoint sets of message keys (see `messages.message_key`); a key that was never joined is alone in its set."""

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


def select_languages(
    num_messages: Mapping[str, int], held_out: int, langs: Sequence[str] = (), max_langs: int | None = None
) -> list[str]:
    """The languages to use, largest first; `num_messages` counts different messages by language.

    `langs` if given; otherwise all that keep enough for training when `held_out` messages are put aside, thinned to
    `max_langs` evenly along the order of sizes, the largest and the smallest included, so that the skew stays.

    Raises:
        UserError: a language is too small, or none is large enough.
    """
    for lang in langs:
        if num_messages.get(lang, 0) <= held_out:
            raise UserError(
                f"`--valid-size` and `--test-size` must leave {lang} messages to train on, but it has"
                f" {num_messages.get(lang, 0)} and they hold out {held_out}."
            )
    enough = langs or [lang for lang, count in num_messages.items() if count * (1 - MIN_TRAINING_SHARE) >= held_out]
    if not enough:
        raise UserError(
            f"`--valid-size` and `--test-size` must leave messages to train on, but the largest language has"
            f" {max(num_messages.values(), default=0)} and they hold out {held_out}."
        )
    ordered = sorted(enough, key=lambda lang: (-num_messages[lang], lang))
    if max_langs is None or max_langs >= len(ordered):
        return ordered
    steps = max(max_langs - 1, 1)
    return [ordered[round(index * (len(ordered) - 1) / steps)] for index in range(max_langs)]


def split_by_message(
    pairs: Mapping[str, Pairs], group_of: Mapping[str, str], sizes: Mapping[str, int], seed: int
) -> dict[str, dict[str, Pairs]]:
    """Split English-to-many pairs so that the splits share no message in any language.

    The smallest language chooses first and the others take over what they have too, so that most validation and test
    messages are the same in all.

    Args:
        pairs: by target language.
        group_of: by source sentence, the name of its group: sentences of one group are the same message.
        sizes: the number of test and valid messages of every language; each must have more than both.

    Returns:
        by language, largest first, and split, its pairs: those to train on in their order, others as they were drawn.
        Pairs in no split are left out because their message is held out already, in another wording or for another
        language.
    """
    groups = {lang: {group_of[source] for source, _ in of_lang} for lang, of_lang in pairs.items()}
    draw = {
        group: hashlib.sha256(f"{seed}\0{group}".encode()).digest() for of_lang in groups.values() for group in of_lang
    }
    by_size = sorted(pairs, key=lambda lang: (len(groups[lang]), lang))
    held_out = _choose([groups[lang] for lang in by_size], draw, sizes)
    spread = Counter(wording for of_lang in pairs.values() for wording in {source for source, _ in of_lang})
    splits: dict[str, dict[str, Pairs]] = {}
    for lang in reversed(by_size):
        splits[lang] = {"train": [pair for pair in pairs[lang] if group_of[pair[0]] not in held_out]}
        best: dict[str, tuple[str, str]] = {}  # of each group, the first pair with the wording that most languages have
        for pair in pairs[lang]:
            group = group_of[pair[0]]
            if group in held_out and (group not in best or spread[pair[0]] > spread[best[group][0]]):
                best[group] = pair
        for name in EVALUATION:
            drawn = sorted((group for group in best if held_out[group] == name), key=draw.__getitem__)
            splits[lang][name] = [best[group] for group in drawn[: sizes[name]]]
    return splits


def _choose(groups: Sequence[set[str]], draw: Mapping[str, bytes], sizes: Mapping[str, int]) -> dict[str, str]:
    """The split of every group of messages that is held out.

    Args:
        groups: of each language, the smallest first.
    """
    held_out: dict[str, str] = {}
    for of_lang in groups:
        free = iter(sorted(of_lang - held_out.keys(), key=draw.__getitem__))
        for name in EVALUATION:
            there = sum(held_out.get(group) == name for group in of_lang)
            held_out |= dict.fromkeys(islice(free, max(0, sizes[name] - there)), name)
    return held_out
