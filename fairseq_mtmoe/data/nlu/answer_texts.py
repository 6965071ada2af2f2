"""How alike two answers to a question are, by the rules of SQuAD's own evaluation.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text", §5, and its `evaluate-v1.1.py`; MRQA's
and ReCoRD's evaluations do the same.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable

ARTICLES = re.compile(r"\b(a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """In lower case, without ASCII's punctuation, without articles, with single spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split())


def exact_match(answer: str, right: str) -> float:
    """1 where both are the same after normalization, else 0."""
    return float(normalized(answer) == normalized(right))


def f1(answer: str, right: str) -> float:
    """Of the words of both after normalization, each as often as it is there; 0 where they share none."""
    words, right_words = normalized(answer).split(), normalized(right).split()
    shared = (Counter(words) & Counter(right_words)).total()
    return 2 * shared / (len(words) + len(right_words)) if shared else 0.0


def best(alike: Callable[[str, str], float], answer: str, right: Iterable[str]) -> float:
    """How alike an answer and the most alike one of those that are right are."""
    return max(alike(answer, one) for one in right)
