"""Splitting by English message: nothing that is tested on, in whatever language, was trained on in any language.

Two messages are the same if their `clean.message_key` is, or if one is the plural of the other. Which ones are held
out is decided by hash, so it depends on the seed and the messages alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairseq_mtmoe.data.corpora.bitext import Bitext, SentencePair
from fairseq_mtmoe.data.corpora.clean import message_key
from fairseq_mtmoe.data.corpora.groups import Groups

EVALUATION = ("test", "valid")


def split_by_message(
    pairs: Mapping[str, Sequence[SentencePair]], groups: Groups, sizes: Mapping[str, int], seed: int
) -> tuple[list[Bitext], dict[str, int]]:
    """Split English-to-many pairs, given by target language, so that the splits share no message in any language.

    `sizes` has the number of test and valid messages of every language; each language must have more messages than
    both. The smallest language chooses first and the others take over what they have too, so that most validation and
    test messages are the same in all. Returns the bitexts, largest first, and by pair the number of pairs left out
    because their message is held out already, in another wording or for another language.
    """
    messages = {lang: _by_group(lang_pairs, groups) for lang, lang_pairs in pairs.items()}
    by_size = sorted(messages, key=lambda lang: (len(messages[lang]), lang))
    held_out = _choose(messages, by_size, sizes, seed)
    spread = Counter(source for lang_pairs in pairs.values() for source in {source for source, _ in lang_pairs})
    bitexts, reserved = [], {}
    for lang in reversed(by_size):
        splits: dict[str, list[SentencePair]] = {"train": [], "valid": [], "test": []}
        for name in EVALUATION:
            chosen = [group for group in messages[lang] if held_out.get(group) == name]
            chosen.sort(key=lambda group: _draw(seed, group))
            splits[name] = [_shared_wording(messages[lang][group], spread) for group in chosen[: sizes[name]]]
        splits["train"] = [pair for pair in pairs[lang] if _group(pair, groups) not in held_out]
        bitext = Bitext("en", lang, splits)
        bitexts.append(bitext)
        reserved[bitext.name] = len(pairs[lang]) - sum(map(len, splits.values()))
    return bitexts, reserved


def _group(pair: SentencePair, groups: Groups) -> str:
    return groups.find(message_key(pair[0]))


def _by_group(pairs: Sequence[SentencePair], groups: Groups) -> dict[str, list[SentencePair]]:
    by_group: dict[str, list[SentencePair]] = defaultdict(list)
    for pair in pairs:
        by_group[_group(pair, groups)].append(pair)
    return dict(by_group)


def _choose(
    messages: Mapping[str, Mapping[str, object]], by_size: Sequence[str], sizes: Mapping[str, int], seed: int
) -> dict[str, str]:
    """The split of every held-out group of messages."""
    held_out: dict[str, str] = {}
    for lang in by_size:
        free = [group for group in messages[lang] if group not in held_out]
        free.sort(key=lambda group: _draw(seed, group))
        for name in EVALUATION:
            present = sum(held_out.get(group) == name for group in messages[lang])
            missing = max(0, sizes[name] - present)
            held_out.update(dict.fromkeys(free[:missing], name))
            free = free[missing:]
    return held_out


def _shared_wording(pairs: Sequence[SentencePair], spread: Mapping[str, int]) -> SentencePair:
    """Of one group's pairs, the first with the wording that the most languages have."""
    return max(pairs, key=lambda pair: spread[pair[0]])


def _draw(seed: int, group: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{group}".encode()).digest()


@dataclass(frozen=True)
class Overlap:
    """Validation and test sources of one pair that occur in training data."""

    sources: int = 0
    of_pairs: dict[str, int] = field(default_factory=dict)  # whose training data: the pair, and how many of the sources


def sources_in_training(bitexts: Sequence[Bitext]) -> dict[str, Overlap]:
    """By language pair, how many validation and test sources occur in the training data of which pairs.

    Sources are compared by `message_key`, and only with training data that has the same source language.
    """
    evaluated = {bitext.name: [key for name in EVALUATION for key in _source_keys(bitext, name)] for bitext in bitexts}
    trained: dict[tuple[str, str], set[str]] = {key: set() for keys in evaluated.values() for key in keys}
    for bitext in bitexts:
        for key in _source_keys(bitext, "train"):
            if key in trained:
                trained[key].add(bitext.name)
    return {
        name: Overlap(
            sum(bool(trained[key]) for key in keys),
            dict(sorted(Counter(pair for key in keys for pair in trained[key]).items())),
        )
        for name, keys in evaluated.items()
    }


def _source_keys(bitext: Bitext, split: str) -> list[tuple[str, str]]:
    return [(bitext.source_lang, message_key(source)) for source, _ in bitext.splits[split]]
