"""Files of every kind, damaged or with one value changed, in the hands of what reads them."""

import atexit
import bz2
import functools
import gzip
import io
import json
import lzma
import multiprocessing
import os
import random
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from backports import zstd

from fairseq_mtmoe.analysis import run_log
from fairseq_mtmoe.analysis.score_files import scores_of_tasks
from fairseq_mtmoe.analysis.score_tables import write_scores
from fairseq_mtmoe.analysis.scores import PairScore
from fairseq_mtmoe.backbones.bert import pretrained as bert
from fairseq_mtmoe.backbones.bert.key_map import hugging_face_key
from fairseq_mtmoe.backbones.t5 import pretrained as t5
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.cli._evaluating import UNFINISHED, ScoreFolder
from fairseq_mtmoe.data.corpora.cleaning import languages as identification
from fairseq_mtmoe.data.corpora.recipes import recipe as loading
from fairseq_mtmoe.data.nlu import table
from fairseq_mtmoe.data.nlu.tokenizer_files import serialized_tokenizer
from fairseq_mtmoe.data.nlu.tokenizing import TextTokenizer
from tests.fuzz.harness import Reader, fairseq, mtmoe
from tests.fuzz.odd_values import ODD, TENSORS, replace_one
from tests.golden.old_runs import OLD, RUNS
from tests.helpers.benchmark import make_benchmark, make_encoder, task_arguments
from tests.helpers.benchmark import serialized_tokenizer as tokenizer_of_letters
from tests.helpers.benchmark_scores import set_of, task_of
from tests.helpers.bert import TINY, pretrained
from tests.helpers.commands import PLUGIN, training_arguments
from tests.helpers.damage import damage
from tests.helpers.evaluations import write_evaluation
from tests.helpers.fasttext_files import write_model
from tests.helpers.reading import corpus, found_in
from tests.helpers.text_to_text import make_t5, pretrained_t5, text_arguments
from tests.helpers.training import run_here

_ROWS = [{"en": f"house {number}", "de": f"Haus {number % 7}"} for number in range(40)]
_LINES = "".join(f"{row['en']}\t{row['de']}\n" for row in _ROWS).encode()


def _tar(content: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in ("data/b.tsv", "data/a.tsv"):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def _zip(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/a.tsv", content)
    return file.getvalue()


_PACKED: tuple[Callable[[bytes], bytes], ...] = (gzip.compress, bz2.compress, lzma.compress, zstd.compress, _tar, _zip)


def _plain(ending: str, content: bytes) -> Reader:
    return Reader(
        ending,
        lambda draw, folder: (folder / f"a.{ending}").write_bytes(damage(draw, content)),
        lambda folder, draw: found_in(corpus(folder / f"a.{ending}")),
    )


def _make_archive(draw: random.Random, folder: Path) -> None:
    content = draw.choice(_PACKED)(_LINES)
    content = draw.choice((gzip.compress, zstd.compress))(content) if draw.random() < 0.3 else content
    (folder / "a.tsv").write_bytes(damage(draw, content))


def _read_archive(folder: Path, draw: random.Random) -> object:
    member = draw.choice(("", "!data/a.tsv", "!*.tsv", "!data/[ab]*", "!" + "a*" * 30 + "b", "!../a"))
    return found_in(corpus(f"{folder}/a.tsv{member}"))


def _make_fasttext(draw: random.Random, folder: Path) -> None:
    words = {"en": ["house", "tree"], "de": ["Haus", "Baum"]}
    content = bytearray(write_model(folder / "model.bin", words).read_bytes())
    for _ in range(draw.choice((1, 1, 2))):  # of the sizes at its start, mostly
        start = draw.randrange(min(len(content), draw.choice((96, 400))) - 8)
        content[start : start + 4] = draw.choice((b"\xff" * 4, b"\0" * 4, b"\0\0\0\x10", draw.randbytes(4)))
    (folder / "model.bin").write_bytes(content if draw.random() < 0.7 else damage(draw, bytes(content)))


def _read_fasttext(folder: Path, draw: random.Random) -> object:
    identification.check_model(str(folder / "model.bin"))
    return identification.in_other_language(["house", "Haus", ""], "en", str(folder / "model.bin"), 0.5)


def _make_recipe(draw: random.Random, folder: Path) -> None:
    name, others = draw.choice(("wmt15", "catalogs", "folder")), tuple(one for one in ODD if not isinstance(one, tuple))
    content = Path(loading.__file__).with_name(f"{name}.yaml").read_text()
    if draw.random() < 0.7:
        values = yaml.load(content, yaml.CSafeLoader)
        replace_one(draw, values, others[:6] + others[13:])
        content = yaml.dump(values, Dumper=yaml.CSafeDumper, allow_unicode=True)
    if draw.random() < 0.1:
        content += "".join(f"name{number}: {number}\n" for number in range(40_000))
    _write(draw, folder / "recipe.yaml", content)


CORPORA = [
    _plain("tsv", _LINES),
    _plain("jsonl", "\n".join(map(json.dumps, _ROWS)).encode()),
    Reader("archive", _make_archive, _read_archive),
    Reader("fasttext", _make_fasttext, _read_fasttext),
    Reader("recipe", _make_recipe, lambda folder, draw: loading.load_recipe(folder / "recipe.yaml")),
]


_SETTINGS = {"checkpoint_sha256": "1", "data_sha256": "2", "beam": 5}
_SCORE = PairScore("en-de", "high", 2, 31.5, 50.0, "nrefs:1", "nrefs:1", spbleu=30.0, spbleu_signature="x",
                   metrics={"COMET": 0.8}, metric_signatures={"COMET": "x"})  # fmt: skip
_JSON = tuple(value for value in ODD if not (isinstance(value, dict) and 0 in value))


def _make_log(draw: random.Random, folder: Path) -> None:
    lines = [json.loads(line) for line in (OLD / "sparse" / run_log.FILE_NAME).read_text().splitlines()]
    kinds = {event["event"]: number for number, event in enumerate(lines)}
    for _ in range(draw.choice((1, 1, 2))):
        replace_one(draw, lines[draw.choice(list(kinds.values()))], _JSON)
    _write(draw, folder / "run" / run_log.FILE_NAME, "\n".join(map(_text, lines)) + "\n")


def _read_log(folder: Path, draw: random.Random) -> None:
    if draw.random() < 0.5:
        return mtmoe("report", folder / "run", "--png", folder / "plots")
    return mtmoe("report", folder / "run", folder / "page.html")


def _make_scores(draw: random.Random, folder: Path) -> None:
    for name in ("a", "b"):
        write_evaluation(folder / name, 0.3, seed=ord(name), sentences=4)
        path = folder / name / "scores.json"
        if draw.random() < 0.4:
            for text in folder.glob(f"{name}/*"):
                text.unlink()
            task = task_of("rte", set_of(50.0, also={"f1": (40.0, 2.0)}), group="glue")
            write_scores(folder / name, scores_of_tasks(task, {"checkpoint": "c.pt", "seed": 1, "subset": "valid"}))
    content = json.loads(path.read_text())
    replace_one(draw, content, _JSON)
    _write(draw, path, _text(content))


def _read_scores(folder: Path, draw: random.Random) -> None:
    way = draw.choice(("compare", "means", "report"))
    if way == "report":
        shutil.copytree(OLD / "sparse", folder / "run")
        return mtmoe("report", folder / "run", folder / "page.html", "--scores", folder / "b")
    named = (folder / "a", folder / "b") if way == "compare" else (f"x={folder}/a", f"y={folder}/b")
    return mtmoe("compare", *named, "--out", folder / "out")


def _make_unfinished(draw: random.Random, folder: Path) -> None:
    content = {"settings": dict(_SETTINGS), "pairs": {"en-de": json.loads(json.dumps(_SCORE.fields))}}
    values: list[Any] = [content]
    replace_one(draw, values, _JSON)
    _write(draw, folder / UNFINISHED, _text(values[0]))


def _read_unfinished(folder: Path, draw: random.Random) -> None:
    scores = ScoreFolder(folder, _SETTINGS, overwrite=True)
    scores.finished()
    scores.write_scores(list(scores.unfinished.values()) or [_SCORE])


def _text(value: Any) -> str:
    """JSON with what Python's own cannot write: numbers of thousands of digits."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    return "1" * 5001 if isinstance(value, int) and value > 2**100 else json.dumps(value)


def _write(draw: random.Random, path: Path, text: str) -> None:
    """Now and then damaged."""
    content = text.encode("utf-8", "surrogatepass")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if draw.random() < 0.6 else damage(draw, content))


LOGS = [
    Reader("run log", _make_log, _read_log),
    Reader("scores", _make_scores, _read_scores),
    Reader("unfinished scores", _make_unfinished, _read_unfinished),
]


_PLAIN = tuple(one for one in ODD if not isinstance(one, tuple) and (not isinstance(one, int) or one != 10**5000))


def _make_table(draw: random.Random, folder: Path) -> None:
    rows = yaml.load(Path(table.__file__).with_name("tasks.yaml").read_text(), yaml.CSafeLoader)
    name = draw.choice(list(rows))
    chosen = {name: rows[name]}
    for _ in range(draw.choice((0, 1, 1, 2))):
        replace_one(draw, chosen, _PLAIN)
    _write(draw, folder / "table.yaml", yaml.dump(chosen, Dumper=yaml.CSafeDumper, allow_unicode=True))


def _tokenizer(draw: random.Random) -> str:
    value = json.loads(tokenizer_of_letters())
    replace_one(draw, value, _PLAIN)
    if draw.random() < 0.2:
        value["normalizer"] = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10**6}
    return json.dumps(value)


def _make_tokenizer(draw: random.Random, folder: Path) -> None:
    _write(draw, folder / "tokenizer.json", _tokenizer(draw))


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


MODELS = [
    Reader("task table", _make_table, lambda folder, draw: table.load_tables([folder / "table.yaml"])),
    Reader("tokenizer", _make_tokenizer, _read_tokenizer),
    Reader("Hugging Face folder", _make_folder, _read_folder),
]


GOLDEN = tuple(RUNS)
OTHERS = {
    "mt_tag": ("glue", task_arguments, "--glue-tasks", "cola,copa", "--init-encoder", "encoder.pt"),
    "ca_mtl": ("glue", task_arguments, "--arch", "ca_mtl", "--glue-tasks", "cola,stsb", "--init-encoder", "encoder.pt"),
    "t5": ("text_to_text", text_arguments, "--init-model", "t5.pt"),
}
UPDATES = 2
_PARTS = ("cfg", "cfg", "task_state", "extra_state", "optimizer_history", "last_optimizer_state", "model", None)


@functools.cache
def begun() -> Path:
    """The folder of the checkpoints that tries begin with, made once, in a process of its own."""
    folder = Path(tempfile.mkdtemp(prefix="fuzzed-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # tries end without it
    child = multiprocessing.get_context("fork").Process(target=_make_all, args=(folder,))
    child.start()
    child.join()
    assert child.exitcode == 0, "no checkpoints to fuzz"
    return folder


def _make_all(folder: Path) -> None:
    for name in (*GOLDEN, "data"):
        shutil.copytree(OLD / name, folder / name)
    make_benchmark(folder / "nlu", {"train": 16, "dev": 8, "test": 4})
    os.chdir(folder / "nlu")
    make_encoder(Path("encoder.pt"))
    make_t5(Path("t5.pt"))
    for name in OTHERS:
        run_here(_trained(folder, name, folder / name, UPDATES, "--disable-validation"))


def _trained(folder: Path, name: str, save_dir: Path, updates: int, *more: object) -> tuple[object, ...]:
    if name in GOLDEN:
        return training_arguments(folder / "data", save_dir, *RUNS[name], "--max-update", updates, *more)
    _, arguments, *options = OTHERS[name]
    end = ("--restore-file", more[-1]) if "--restore-file" in more else ()
    options = options[:-2] if end else options
    return arguments(folder / "nlu", save_dir, *options, "--max-update", updates, *more)


def _make_checkpoint(draw: random.Random, folder: Path) -> None:
    """Write `checkpoint.pt`, one of the checkpoints with one value changed, and what it is of."""
    name = draw.choice((*GOLDEN, *OTHERS))
    shutil.copytree(begun() / name, folder, dirs_exist_ok=True)
    path = folder / "checkpoint_last.pt"
    state = file_io.load(str(path))
    part = draw.choice(_PARTS)
    if part == "cfg":
        part = draw.choice(("model", "task", "criterion", "optimizer", "lr_scheduler", "cfg", "cfg"))
        inside = state["cfg"] if part == "cfg" else state["cfg"][part]
    else:
        inside = state.get(part) if part else state
    change = replace_one(draw, inside or state, ODD + TENSORS)
    (folder / "change.txt").write_text(f"{name} {part or ''}{change}", errors="replace")
    file_io.save(state, str(path))


def _read_checkpoint(folder: Path, draw: random.Random) -> object:
    name = (folder / "change.txt").read_text().split()[0]
    path, out, base = folder / "checkpoint_last.pt", folder / "out.pt", begun()
    data = base / "data" if name in GOLDEN else base / "nlu"
    task = "translation_heated" if name in GOLDEN else OTHERS[name][0]
    ways = {
        "train": lambda: fairseq("train", *_trained(base, name, folder / "run", (9 if name in GOLDEN else UPDATES + 1),
                                  "--save-interval-updates", 0, "--disable-validation", "--restore-file", path)),
        "begin": lambda: fairseq("train", *_trained(base, name, folder / "run", 1, "--disable-validation",
                                  "--finetune-from-model", path)),
        "validate": lambda: fairseq("validate", data, *PLUGIN, "--task", task, "--path", path, "--cpu",
                                     "--batch-size", 16, "--no-progress-bar", "--num-workers", 0),
        "average": lambda: mtmoe("average", "--inputs", path, "--output", out),
        "evaluate": lambda: mtmoe("evaluate", data, "--path", path, "--cpu"),
    }  # fmt: skip
    if name in GOLDEN:
        ways["generate"] = lambda: fairseq(
            "generate", data, *PLUGIN, "--task", task, "-s", "en", "-t", "aa", "--path", path, "--cpu", "--beam", 2,
            "--max-len-b", 5,
        )  # fmt: skip
        ways["reshard"] = lambda: mtmoe("reshard", path, out, "--single-file")
        ways["add-task"] = lambda: mtmoe("add-task", path, out, "--task", "dd")
        if name == "dense":
            ways["upcycle"] = lambda: mtmoe("upcycle", path, out, "--num-experts", 2)
    else:
        ways["predict"] = lambda: mtmoe("predict", data, "--path", path, "--subset", "valid", "--cpu")
    way = draw.choice(list(ways))
    (folder / "way.txt").write_text(way)
    return ways[way]()


CHECKPOINTS = [Reader("checkpoint", _make_checkpoint, _read_checkpoint, seconds=60, begin=begun)]
