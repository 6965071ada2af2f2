"""A model for language identification in fastText's own format, as its `FastText::saveModel` writes it."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

CERTAINTY = 8.0  # a sentence of one language's words alone has a probability of over 0.99


def write_model(path: Path, words: Mapping[str, Sequence[str]]) -> Path:
    """A linear classifier that knows the words of each label: the share of a label's words decides."""
    known = ["</s>", *(word for of_label in words.values() for word in of_label)]
    entries = [(word, 0) for word in known] + [(f"__label__{label}", 1) for label in words]
    data = struct.pack("<2i", 793712314, 12)  # what it is, and the version
    # dimension, window, epochs, least count, negatives, word n-grams, softmax, supervised, buckets, characters, rate
    data += struct.pack("<12id", len(words), 5, 5, 1, 5, 1, 3, 3, 0, 0, 0, 100, 1e-4)
    data += struct.pack("<3i2q", len(entries), len(known), len(words), 100, -1)
    data += b"".join(name.encode() + b"\0" + struct.pack("<qb", 1, kind) for name, kind in entries)
    output = np.eye(len(words), dtype="<f4")
    vectors = CERTAINTY * np.repeat(output, list(map(len, words.values())), axis=0)
    for matrix in (np.concatenate([0 * output[:1], vectors]), output):
        data += b"\0" + struct.pack("<2q", *matrix.shape) + matrix.tobytes()
    path.write_bytes(data)
    return path
