"""A small whole file of each kind, and its reader."""

import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from backports import zstd

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.corpora.cleaning import languages as identification
from fairseq_mtmoe.corpora.recipes import from_yaml as recipes
from fairseq_mtmoe.nlu.bert import pretrained as bert
from fairseq_mtmoe.nlu.bert.key_map import KEYS
from fairseq_mtmoe.nlu.data import table
from fairseq_mtmoe.nlu.data.tokenizer_files import serialized_tokenizer
from fairseq_mtmoe.nlu.data.tokenizing import TextTokenizer
from fairseq_mtmoe.nlu.t5 import pretrained as t5
from fairseq_mtmoe.report import run_log
from fairseq_mtmoe.report.score_files import read_scores
from tests.helpers.benchmark import serialized_tokenizer as tokenizer_of_letters
from tests.helpers.bert import TINY
from tests.helpers.bert import pretrained as pretrained_bert
from tests.helpers.evaluations import write_evaluation
from tests.helpers.fasttext_files import write_model
from tests.helpers.reading import corpus, found_in
from tests.helpers.states import save_all
from tests.helpers.text_to_text import pretrained_t5

LINES = b"en\tde\n" + b"house\tHaus\nit\tdas\n" * 20


@dataclass(frozen=True)
class Reader:
    """`write` fills a folder and returns the file to damage; `read` reads the folder."""

    write: Callable[[Path], Path]
    read: Callable[[Path], object]


def _file(name: str, content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content)
        return path

    return write


def _tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        member = tarfile.TarInfo("data/a.tsv")
        member.size = len(LINES)
        tar.addfile(member, io.BytesIO(LINES))
    return file.getvalue()


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/a.tsv", LINES)
    return file.getvalue()


def _read_corpus(folder: Path) -> object:
    (path,) = folder.iterdir()
    return found_in(corpus(path))


def _read_member(folder: Path) -> object:
    (path,) = folder.iterdir()
    return found_in(corpus(f"{path}!data/a.tsv"))


def _read_fasttext(folder: Path) -> object:
    model = str(folder / "model.bin")
    identification.check_model(model)
    return identification.in_other_language(["house", "Haus", ""], "en", model, 0.5)


def _write_log(folder: Path) -> Path:
    log = run_log.RunLog(folder / run_log.FILE_NAME)
    log.write("run", sizes={"en-de": 40}, seed=1, options={"lr": [0.1]})
    for update in range(1, 9):
        log.write("train", update=update, loss=1.0 / update)
    return log.path


def _read_tokenizer(folder: Path) -> object:
    text = (folder / "tokenizer.json").read_text(errors="replace")
    tokenizer = TextTokenizer(serialized_tokenizer({"tokenizer.json": text}), 24)
    return tokenizer.with_offsets(["a b c", "", "what was the cause ?"])


def _write_bert(damaged_name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        tensors = {KEYS.hugging_face_key(name): value for name, value in pretrained_bert().state.items()}
        torch.save(tensors, folder / "pytorch_model.bin")
        (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
        (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
        (folder / "config.json").write_text(json.dumps(TINY.for_hugging_face()))
        return folder / damaged_name

    return write


def _write_t5(folder: Path) -> Path:
    t5.write_folder(pretrained_t5(), folder / "t5")
    return folder / "t5" / "spiece.model"


def _write_checkpoint(folder: Path) -> Path:
    (path,) = save_all(folder, {"model": {"weight": torch.zeros(300)}, "extra_state": {"epoch": 3}})
    return path


READERS = {
    "tsv": Reader(_file("a.tsv", LINES), _read_corpus),
    "jsonl": Reader(_file("a.jsonl", b'{"en": "house", "de": "Haus"}\n' * 40), _read_corpus),
    "zstandard": Reader(_file("a.tsv", zstd.compress(LINES)), _read_corpus),
    "tar": Reader(_file("a.tgz", _tar()), _read_member),
    "zip": Reader(_file("a.zip", _zip()), _read_member),
    "fasttext": Reader(
        lambda folder: write_model(folder / "model.bin", {"en": ["house", "tree"], "de": ["Haus", "Baum"]}),
        _read_fasttext,
    ),
    "recipe": Reader(
        _file("recipe.yaml", Path(recipes.__file__).with_name("wmt15.yaml").read_bytes()),
        lambda folder: recipes.load_recipe(folder / "recipe.yaml"),
    ),
    "task table": Reader(
        _file("table.yaml", Path(table.__file__).with_name("tasks.yaml").read_bytes()),
        lambda folder: table.load_tables([folder / "table.yaml"]),
    ),
    "run log": Reader(_write_log, run_log.read),
    "scores": Reader(
        lambda folder: write_evaluation(folder, 0.3, sentences=4) / "scores.json",
        lambda folder: read_scores(folder / "scores.json"),
    ),
    "tokenizer": Reader(_file("tokenizer.json", tokenizer_of_letters().encode()), _read_tokenizer),
    "BERT's weights": Reader(_write_bert("pytorch_model.bin"), bert.read_folder),
    "BERT's options": Reader(_write_bert("config.json"), bert.read_folder),
    "T5's pieces": Reader(_write_t5, lambda folder: t5.read_folder(folder / "t5")),
    "checkpoint": Reader(_write_checkpoint, lambda folder: file_io.load(str(next(folder.iterdir())))),
}
