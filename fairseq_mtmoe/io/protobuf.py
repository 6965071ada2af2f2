"""Protocol Buffers' encoding as SentencePiece models need it, without schemas.

A message is a sequence of numbered fields. Concatenated messages are one message: their repeated fields are joined.
"""

import struct
from collections.abc import Iterator

from fairseq_mtmoe.errors import UserError

_NUMBER, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # encodings of a field's value
_SIZES = {_DOUBLE: 8, _FLOAT: 4}


def number(field: int, value: int) -> bytes:
    """Encode a field with a whole number."""
    return _varint(field << 3 | _NUMBER) + _varint(value)


def real(field: int, value: float) -> bytes:
    """Encode a field with a float."""
    return _varint(field << 3 | _FLOAT) + struct.pack("<f", value)


def binary(field: int, value: bytes) -> bytes:
    """Encode a field with UTF-8 text or a message."""
    return _varint(field << 3 | _BYTES) + _varint(len(value)) + value


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield a message's fields: whole numbers, else bytes (UserError: it is damaged)."""
    at = 0
    try:
        while at < len(message):
            key, at = _read_varint(message, at)
            kind = key & 7
            if kind == _NUMBER:
                value, at = _read_varint(message, at)
                yield key >> 3, value
                continue
            size, at = _read_varint(message, at) if kind == _BYTES else (_SIZES[kind], at)
            if at + size > len(message):
                raise IndexError
            yield key >> 3, message[at : at + size]
            at += size
    except (IndexError, KeyError) as error:
        raise UserError("A message in Protocol Buffers' encoding is damaged.") from error


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # two's complement
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        value |= (message[at + place] & 0x7F) << 7 * place
        if message[at + place] < 0x80:
            return value, at + place + 1
    raise IndexError
