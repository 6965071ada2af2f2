"""What the scripts that make a study's text share: near copies, and the files of a language pair."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path

Pair = tuple[str, str]
Grams = Callable[[str], set[Hashable]]


def near_copies(texts: Sequence[str], train: Iterable[str], grams: Grams, overlap: float) -> list[bool]:
    """Return for each text whether it has no n-grams, or one training text has this share of them."""
    holders: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number, text in enumerate(train):
        for gram in grams(text):
            holders[gram].append(number)
    near = []
    for text in texts:
        parts = grams(text)
        shared = Counter(number for gram in parts for number in holders.get(gram, ()))
        near.append(max(shared.values(), default=0) >= overlap * len(parts))
    return near


def write_pairs(folder: Path, language: str, splits: dict[str, list[Pair]]) -> None:
    """Write the files of the pair of English and a language, a line for each sentence."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in splits.items():
        for side, code in enumerate(("en", language)):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.en-{language}.{code}").write_text(text, encoding="utf-8")
