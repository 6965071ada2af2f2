"""A corpus in parts is the whole corpus, line by line."""

import json
import random

import pytest

from fairseq_mtmoe.corpora import readers
from fairseq_mtmoe.corpora.readers import parts_of
from tests.helpers.reading import found_in, written

ODD = [b"", b" ", b"\xff\xfe is none", b"\xef\xbb\xbfmark", b"a\rb", b"nul\0", b"BZh9 \x1f\x8b\x08", b"one\ttwo\tthree"]


def lines_of(draw, count, wrap):
    end = draw.choice([b"\n", b"\r\n"])
    texts = [draw.choice(ODD) if draw.random() < 0.1 else wrap(draw.randrange(1000)) for _ in range(count)]
    texts[0] = wrap(0)  # the beginning says what a file is
    return end.join(texts) + end * draw.randrange(2)


def moses(folder, draw, count):
    sides = [lines_of(draw, count, lambda number: b"sentence %d" % number) for _ in range(2)]
    return written(folder, *sides)


def tsv(folder, draw, count):
    head = b"de\ten\n" if draw.random() < 0.5 else b""
    rows = lines_of(draw, count, lambda number: b"Satz %d ist da\tthe sentence %d is of the here" % (number, number))
    return written(folder, head + rows, fields={} if head else {"source": 2, "target": 1})


def jsonl(folder, draw, count):
    def row(number):
        return json.dumps({"en": f"sentence {number}", "de": draw.choice([f"Satz {number}", None, "\ud800"])}).encode()

    return written(folder, row(0) + b"\n" + lines_of(draw, count, row), format="jsonl")


@pytest.mark.parametrize("kind", [moses, tsv, jsonl])
@pytest.mark.parametrize("seed", [3, 6, 12])  # files of many lines
def test_the_parts_of_a_corpus_are_the_corpus(kind, seed, tmp_path, monkeypatch):
    draw = random.Random(seed)
    monkeypatch.setattr(readers, "_CHUNK", draw.choice([7, 64, 1 << 20]))
    monkeypatch.setattr(readers, "_EVERY", draw.choice([1, 3, 10]))
    files = kind(tmp_path, draw, draw.choice([1, 39, 40, 41, 150]))
    most_lines, most_bytes = draw.choice([(20, 1 << 20), (40, 1 << 20), (40, 300), (3, 20)])
    pairs, bad = found_in(files)
    found = parts_of(files, most_lines, most_bytes)
    each = [found_in(part) for part in found]
    assert [one for of_part, _ in each for one in of_part] == pairs
    assert [one for _, of_part in each for one in of_part] == bad
    assert len(found) >= len(pairs) // most_lines and all(len(of_part) <= most_lines for of_part, _ in each)
    assert parts_of(written(tmp_path, b"<tmx></tmx>"), 10, 1000) == []  # it has no pair per line
