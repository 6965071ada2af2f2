"""A model for language identification in fastText's own format, as its `FastText::saveModel` writes it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

MAGIC, VERSION = 793712314, 12
SOFTMAX, SUPERVISED = 3, 3
WORD, LABEL = 0, 1
END_OF_LINE = "</s>"
CERTAINTY = 8.0  # a sentence of one language's words alone has a probability of over 0.99


def write_model(path: Path, words: Mapping[str, Sequence[str]]) -> Path:
    """A linear classifier that knows the words of each label: the share of a label's words decides."""
    labels = list(words)
    entries = [(END_OF_LINE, WORD, None)]
    entries += [(word, WORD, labels.index(label)) for label in labels for word in words[label]]
    number_of_words = len(entries)
    entries += [(f"__label__{label}", LABEL, None) for label in labels]
    data = struct.pack("<2i", MAGIC, VERSION)
    # dimension, window, epochs, least count, negatives, word n-grams, loss, model, buckets, characters, update rate
    data += struct.pack("<12id", len(labels), 5, 5, 1, 5, 1, SOFTMAX, SUPERVISED, 0, 0, 0, 100, 1e-4)
    data += struct.pack("<3i2q", len(entries), number_of_words, len(labels), 100, -1)
    for name, kind, _ in entries:
        data += name.encode() + b"\0" + struct.pack("<qb", 1, kind)
    vectors = np.zeros((number_of_words, len(labels)), "<f4")
    for row, (_, _, label) in enumerate(entries[:number_of_words]):
        if label is not None:
            vectors[row, label] = CERTAINTY
    data += b"\0" + _matrix(vectors) + b"\0" + _matrix(np.eye(len(labels), dtype="<f4"))
    path.write_bytes(data)
    return path


def _matrix(values: np.ndarray) -> bytes:
    return struct.pack("<2q", *values.shape) + values.tobytes()
