"""Files as accidents and attackers leave them, for property tests of what reads files."""

import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from fairseq_mtmoe.core.errors import UserError

# Numbers at the ends of their ranges, and what text, JSON, YAML and tables of numbers stumble over.
ODD = (
    b"\0" * 8, b"\xff" * 4, b"\xff" * 8, b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\1" + b"\0" * 7, b"\r", b"\n", b"\n\n",
    b"\t", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"-1", b"NaN", b"1e999", b"1" * 30, b"null", b"true", b'"x"', b"[]", b"{}",
    b"[[[[", b'"\\ud800"', b"&a [*a]", b"*", b": ",
)  # fmt: skip
LONG = (b"9" * 5000, b"[" * 2000)  # sentences that repeat them are long, too


def damaged(*contents: bytes) -> st.SearchStrategy[bytes]:
    """One of the contents after a few accidents, or any bytes."""
    accidents = st.builds(damage, st.randoms(use_true_random=False), st.sampled_from(contents), st.just(ODD))
    return st.one_of(accidents, st.binary(max_size=300))


def damage(draw: random.Random, content: bytes, odd: tuple[bytes, ...] = (*ODD, *LONG)) -> bytes:
    """The content after one to four accidents: bytes changed, cut out, repeated or put in."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        start = draw.randint(0, len(content))
        end = min(len(content), start + draw.choice((0, 1, 2, 4, 8, 40, len(content))))
        pieces = (draw.randbytes(draw.randint(0, 9)), content[start:end] * 2, draw.choice(odd))
        content = content[:start] + draw.choice(pieces) + content[end:]
    return content


def value_or_sentence(read: Callable[[], Any]) -> Any:
    """What `read` returns, or None if it refuses with a sentence of one line and modest length."""
    try:
        return read()
    except UserError as error:
        sentence = str(error)
        assert "\n" not in sentence and len(sentence) < 1000, sentence[:2000]
        return None
