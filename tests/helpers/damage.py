"""Files as accidents and attackers leave them, for property tests of what reads files."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from fairseq_mtmoe.errors import UserError


def damaged(*contents: bytes) -> st.SearchStrategy[bytes]:
    """One of the contents after a few accidents (bytes changed, cut out, repeated, put in), or any bytes."""
    return st.one_of(st.sampled_from(contents).flatmap(_after_accidents), st.binary(max_size=300))


@st.composite
def _after_accidents(draw: st.DrawFn, content: bytes) -> bytes:
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from([0, 1, 2, 4, 8, 40, len(content)])))
        new = draw(st.one_of(st.binary(max_size=9), st.just(content[start:end] * 2), st.sampled_from(ODD)))
        content = content[:start] + new + content[end:]
    return content


# Numbers at the ends of their ranges, and what text, JSON and tables of numbers stumble over.
ODD = (
    b"\0" * 8, b"\xff" * 4, b"\xff" * 8, b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\1" + b"\0" * 7, b"\r", b"\n\n",
    b"\xef\xbb\xbf", b"\xed\xa0\x80", b"-1", b"NaN", b"1e999", b"1" * 30, b"null", b"true", b'"x"', b"[]", b"{}",
    b"[[[[", b'"\\ud800"',
)  # fmt: skip


def value_or_sentence(read: Callable[[], Any]) -> Any:
    """What `read` returns, or None if it refuses with a sentence of one line and modest length."""
    try:
        return read()
    except UserError as error:
        sentence = str(error)
        assert "\n" not in sentence and len(sentence) < 1000, sentence[:2000]
        return None
