"""Task tables, and folders of Hugging Face with their tokenizers, damaged."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import torch
import yaml

from fairseq_mtmoe.backbones.bert import pretrained as bert
from fairseq_mtmoe.backbones.bert.key_map import hugging_face_key
from fairseq_mtmoe.backbones.t5 import pretrained as t5
from fairseq_mtmoe.data.nlu import table
from fairseq_mtmoe.data.nlu.tokenizer_files import serialized_tokenizer
from fairseq_mtmoe.data.nlu.tokenizing import TextTokenizer
from tests.fuzz.harness import Reader
from tests.fuzz.odd_values import ODD, damage, replace_one
from tests.helpers.benchmark import serialized_tokenizer as tokenizer_of_letters
from tests.helpers.bert import TINY, pretrained
from tests.helpers.text_to_text import pretrained_t5

_PLAIN = tuple(one for one in ODD if not isinstance(one, tuple) and (not isinstance(one, int) or one != 10**5000))


def _make_table(draw: random.Random, folder: Path) -> None:
    rows = yaml.load(Path(table.__file__).with_name("tasks.yaml").read_text(), yaml.CSafeLoader)
    name = draw.choice(list(rows))
    chosen = {name: rows[name]}
    for _ in range(draw.choice((0, 1, 1, 2))):
        replace_one(draw, chosen, _PLAIN)
    text = yaml.dump(chosen, Dumper=yaml.CSafeDumper, allow_unicode=True).encode("utf-8", "surrogatepass")
    (folder / "table.yaml").write_bytes(text if draw.random() < 0.6 else damage(draw, text))


def _tokenizer(draw: random.Random) -> str:
    value = json.loads(tokenizer_of_letters())
    replace_one(draw, value, _PLAIN)
    if draw.random() < 0.2:
        value["normalizer"] = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10**6}
    return json.dumps(value)


def _make_tokenizer(draw: random.Random, folder: Path) -> None:
    text = _tokenizer(draw).encode() if draw.random() < 0.7 else damage(draw, tokenizer_of_letters().encode())
    (folder / "tokenizer.json").write_bytes(text)


def _read_tokenizer(folder: Path, draw: random.Random) -> object:
    text = (folder / "tokenizer.json").read_text(errors="replace")
    made = TextTokenizer(serialized_tokenizer({"tokenizer.json": text}), 24)
    return made._encode(["a b c", "", "what was the cause ?"])


def _make_folder(draw: random.Random, folder: Path) -> None:
    if draw.random() < 0.5:
        values = TINY.for_hugging_face()
        files = {"vocab.txt": b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", "tokenizer_config.json": b'{"do_lower_case": true}'}
        tensors = {hugging_face_key(name): value for name, value in pretrained().state.items()}
        if draw.random() < 0.4:
            files = {"tokenizer.json": _tokenizer(draw).encode()}
    else:
        made = pretrained_t5()
        values = made.config.for_hugging_face()
        tensors, files = dict(made.state), {"spiece.model": made.sentencepiece}
    if draw.random() < 0.3:
        replace_one(draw, tensors)
    if draw.random() < 0.4:
        replace_one(draw, values, _PLAIN)
    weights = io.BytesIO()
    torch.save(tensors, weights)
    files |= {"pytorch_model.bin": weights.getvalue(), "config.json": json.dumps(values).encode()}
    if draw.random() < 0.2:
        index = {"weight_map": dict.fromkeys(list(tensors)[:3], "pytorch_model.bin")}
        replace_one(draw, index, _PLAIN)
        files["pytorch_model.bin.index.json"] = json.dumps(index).encode()
    name = draw.choice(list(files))
    for file, content in files.items():
        (folder / file).write_bytes(damage(draw, content) if file == name and draw.random() < 0.6 else content)


def _read_folder(folder: Path, draw: random.Random) -> object:
    read = t5.read_folder if (folder / "spiece.model").exists() else bert.read_folder
    return read(folder)


def readers() -> list[Reader]:
    return [
        Reader("task table", _make_table, lambda folder, draw: table.load_tables([folder / "table.yaml"])),
        Reader("tokenizer", _make_tokenizer, _read_tokenizer),
        Reader("Hugging Face folder", _make_folder, _read_folder),
    ]
