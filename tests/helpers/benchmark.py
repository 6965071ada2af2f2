"""A made benchmark in the official files' form, and an encoder that knows nothing of it."""

import gzip
import json
import random
import re
import subprocess
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf
from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

from fairseq_mtmoe.nlu.bert.pretrained import PretrainedEncoder
from tests.helpers.bert import TINY, perturb, tiny_encoder
from tests.helpers.commands import PLUGIN, run_joined

LETTERS = "abcdefghij"  # the first half is what all tasks are about
QUESTIONS = ["what", "was", "the", "cause", "of", "this", "happened", "as", "result", ".", "?"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, *QUESTIONS]
TASKS = "cola,stsb,copa,wic"
DIFFER = partial(perturb, scale=0.5, seed=4)  # predictions then differ


def make_benchmark(folder: Path, sizes: dict[str, int]) -> None:
    """Write `sizes` examples of the splits `train` and `dev`.

    CoLA says whether the first letter is of the first half, STS-B where in the alphabet it is; COPA's right
    choice is of the first half; WiC says whether both words are, RTE whether the second sentence's first letter is.
    """
    draw = random.Random(7)
    for split, count in sizes.items():
        _write(folder / "CoLA" / f"{split}.tsv", [_cola(draw) for _ in range(count)])
        for name, label, line in (("STS-B", "score", _stsb), ("RTE", "label", _rte)):
            header = f"index\tsentence1\tsentence2\t{label}"
            _write(folder / name / f"{split}.tsv", [header, *(f"{n}\t{line(draw)}" for n in range(count))])
        for name, record in (("COPA", _copa), ("WiC", _wic)):
            _write(folder / name / f"{_of_superglue(split)}.jsonl", [record(draw, n) for n in range(count)])


def make_words_and_entities(folder: Path, sizes: dict[str, int]) -> None:
    """Write as many examples of WNUT-17 and ReCoRD: entities are runs of letters of the first half, and right if so."""
    draw = random.Random(13)
    names = {"train": "wnut17train.conll", "dev": "emerging.dev.conll", "test": "emerging.test.annotated"}
    for split, count in sizes.items():
        _write(folder / "WNUT17" / names[split], [line for _ in range(count) for line in _sentence(draw)])
        _write(folder / "ReCoRD" / f"{_of_superglue(split)}.jsonl", [_record(draw, n) for n in range(count)])


def make_related_task(folder: Path, train: int, dev: int) -> Path:
    """Write a task `mine`, CoLA's rule on letters that training lacks, and its table, which is returned."""
    draw = random.Random(11)
    for split, count, firsts in (("train", train, "abfg"), ("dev", dev, "cdehij")):
        letters = [[firsts[number % len(firsts)], *_letters(draw)] for number in range(count)]
        lines = [f"{' '.join(one)}\t{'first' if _half(one[0]) else 'second'}" for one in letters]
        _write(folder / "Mine" / f"{split}.tsv", ["text\tlabel", *lines])
    table = folder / "table.yaml"
    table.write_text(
        "mine:\n  title: Mine\n  description: Say in which half of the alphabet a text begins.\n"
        "  kind: classification\n  texts: [text]\n  labels: [second, first]\n  small: true\n"
        "  splits: {train: [{file: Mine/train.tsv}], valid: [{file: Mine/dev.tsv}]}\n"
    )
    return table


def make_questions(folder: Path, sizes: dict[str, int]) -> None:
    """Write questions of SQuAD in MRQA's form: the answer is the run of letters of the second half in a passage."""
    draw = random.Random(13)
    for split, count in sizes.items():
        path, header = folder / "MRQA" / split / "SQuAD.jsonl.gz", {"header": {"dataset": "SQuAD", "split": split}}
        _write(path, [header, *(_passage(draw, f"{split}-{n}") for n in range(count // 2))])
        path.write_bytes(gzip.compress(path.read_bytes()))


def _passage(draw: random.Random, key: str) -> dict[str, object]:
    before, after = (draw.choices("abcde", k=draw.randint(0, 18)) for _ in range(2))
    run = " ".join(draw.choices("fghijFGHIJ", k=draw.randint(1, 3)))
    start = sum(len(letter) + 1 for letter in before)
    spans = {"char_spans": [[start, start + len(run) - 1]], "token_spans": [[0, 0]]}
    detected, asked = [{"text": run.lower(), **spans}], ("what was this ?", "what happened ?")
    questions = [
        {"qid": f"{key}-{n}", "question": text, "answers": [run, "z"], "detected_answers": detected}
        for n, text in enumerate(asked)
    ]
    return {"context": " ".join([*before, run, *after]), "context_tokens": [], "qas": questions}


def serialized_tokenizer() -> str:
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(PIECES))}
    return str(BertWordPieceTokenizer(vocabulary)._tokenizer.to_str())


def make_encoder(path: Path) -> None:
    """A file of `mtmoe import-hf`: a tiny encoder with that tokenizer."""
    PretrainedEncoder(TINY, {"tokenizer.json": serialized_tokenizer()}, tiny_encoder().state_dict()).save(path)


def task_arguments(data: object, save_dir: object, *args: object) -> tuple[object, ...]:
    """The arguments of `fairseq-train` for a tiny MT-TaG model; `args` come last and win."""
    return (
        data, *PLUGIN, "--task", "glue", "--glue-tasks", TASKS, "--save-dir", save_dir, "--cpu",
        "--seed", 1, "--arch", "mt_tag", "--criterion", "multitask", "--optimizer", "adam", "--lr", 0.003,
        "--batch-size", 16, "--dropout", 0.0, "--attention-dropout", 0.0, "--max-positions", 24, "--max-epoch", 100,
        "--best-checkpoint-metric", "all", "--maximize-best-checkpoint-metric", "--no-epoch-checkpoints",
        "--num-workers", 0, "--log-format", "json", "--log-interval", 50, "--no-progress-bar", *args,
    )  # fmt: skip


def validate(data: object, checkpoint: object, *args: object) -> subprocess.CompletedProcess:
    """`fairseq-validate` of a checkpoint in two processes."""
    command = (
        "fairseq-validate", data, *PLUGIN, "--task", "glue", "--path", checkpoint, "--batch-size", 16, "--cpu",
        "--log-format", "json", "--no-progress-bar", "--num-workers", 0, *args,
    )  # fmt: skip
    return run_joined(2, *command)


def validated(output: subprocess.CompletedProcess) -> dict[str, float]:
    return logged(output.stdout + output.stderr, "all")


def logged(output: str, name: str) -> dict[str, float]:
    """The last of the lines of JSON that say a figure of this name, in validation or training."""
    *_, line = (line for line in output.splitlines() if re.search(rf'"(train_|valid_)?{name}"', line))
    figures = json.loads(line[line.index("{") : line.rindex("}") + 1]).items()
    return {re.sub("^(train_|valid_)", "", key): float(value) for key, value in figures}


def make_unlabelled(folder: Path) -> None:
    """Write the examples of `dev` as the test data of the benchmarks: without labels, under numbers from 1000 on."""

    def lines(name: str) -> list[str]:
        return (folder / name).read_text(encoding="utf-8").splitlines()

    for name, head, header, *fields in (
        ("CoLA", 0, "sentence", 3), ("STS-B", 1, "sentence2\tsentence1", 2, 1),
        ("RTE", 1, "sentence1\tsentence2", 1, 2),
    ):  # fmt: skip
        rows = [line.split("\t") for line in lines(f"{name}/dev.tsv")[head:]]
        chosen = ["\t".join([str(n), *(row[field] for field in fields)]) for n, row in enumerate(rows, 1000)]
        _write(folder / name / "test.tsv", [f"index\t{header}", *chosen])
    for name in ("COPA", "WiC"):
        records = [{**json.loads(line), "idx": n} for n, line in enumerate(lines(f"{name}/val.jsonl"), 1000)]
        _write(folder / name / "test.jsonl", [{key: of[key] for key in of if key != "label"} for of in records])


def save_untrained(data: Path, path: Path, *args: object) -> None:
    """A checkpoint of such a model before its first update, with the encoder `data/encoder.pt`; `args` come last."""
    save_before_training(task_arguments(data, path.parent, "--init-encoder", data / "encoder.pt", *args), path)


def save_before_training(
    arguments: Iterable[object], path: Path, change: Callable[[torch.nn.Module], None] = DIFFER, seed: int = 1
) -> None:
    """A checkpoint of what these arguments of `fairseq-train` train, before its first update."""
    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, list(map(str, arguments))))
    torch.manual_seed(seed)
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    change(model)
    save_new_model(path, OmegaConf.to_container(cfg, resolve=True), model, task.state_dict())


def save_new_model(path: Path, cfg: Any, model: torch.nn.Module, task_state: dict[str, Any]) -> None:
    """A checkpoint of a model before its first update."""
    torch.save({
        "args": None, "cfg": cfg, "model": model.state_dict(), "task_state": task_state,
        "optimizer_history": [{"num_updates": 0, "optimizer_name": "adam", "lr_scheduler_state": {}}],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}, "gate_rate": {}},
    }, path)  # fmt: skip


def _write(path: Path, lines: Iterable[object]) -> None:
    """A file of lines, which are text or will be JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def _of_superglue(split: str) -> str:
    return "val" if split == "dev" else split


def _letters(draw: random.Random) -> list[str]:
    return draw.choices(LETTERS, k=draw.randint(2, 4))


def _half(letter: str) -> int:
    return int(LETTERS.index(letter) < 5)


def _cola(draw: random.Random) -> str:
    letters = _letters(draw)
    return f"made\t{_half(letters[0])}\t\t{' '.join(letters)}"


def _stsb(draw: random.Random) -> str:
    letters = _letters(draw)
    return f"{' '.join(letters)}\t{draw.choice(LETTERS)}\t{LETTERS.index(letters[0]) / 2}"


def _rte(draw: random.Random) -> str:
    second = _letters(draw)
    label = "entailment" if _half(second[0]) else "not_entailment"
    return f"{draw.choice(LETTERS)}\t{' '.join(second)}\t{label}"


def _sentence(draw: random.Random) -> list[str]:
    """Lines of CoNLL's; a word may end with a point, which is a token of its own, or be nothing to a tokenizer."""
    lines, before = [], False
    for _ in range(draw.randint(1, 7)):
        letter = draw.choice(LETTERS)
        is_half = _half(letter) == 1
        label = ("I-person" if before else "B-person") if is_half else "O"
        lines.append(f"{letter}{draw.choice(['', '.'])}\t{label}")
        before = is_half
        if draw.random() < 0.1:
            lines.append("\u200b\tO")
            before = False
    return [*lines, ""]


def _record(draw: random.Random, index: int) -> dict[str, object]:
    """Two to four entities, one or two of which are right."""
    entities = [*draw.sample(LETTERS[1:5], draw.randint(1, 2)), *draw.sample(LETTERS[5:], draw.randint(1, 2))]
    right = [entity for entity in entities if _half(entity)]
    draw.shuffle(entities)
    answers = [{"start": 2 * entities.index(one), "end": 2 * entities.index(one), "text": one} for one in right]
    spans = [{"start": 2 * n, "end": 2 * n} for n in range(len(entities))]
    return {
        "idx": index, "passage": {"text": " ".join(entities), "entities": spans},
        "qas": [{"query": "@placeholder happened", "idx": 100 + index, "answers": answers}],
    }  # fmt: skip


def _copa(draw: random.Random, index: int) -> dict[str, object]:
    right, wrong = draw.choice(LETTERS[:5]), draw.choice(LETTERS[5:])
    label = draw.randint(0, 1)
    first, second = (wrong, right) if label else (right, wrong)
    question = draw.choice(["cause", "effect"])
    premise = draw.choice(LETTERS)
    return {"premise": premise, "choice1": first, "choice2": second, "question": question, "label": label, "idx": index}


def _wic(draw: random.Random, index: int) -> dict[str, object]:
    words = [draw.choice(LETTERS) for _ in range(2)]
    before = [draw.randint(0, 2) for _ in words]
    first, second = (" ".join([*draw.choices(LETTERS, k=k), word]) for k, word in zip(before, words, strict=True))
    return {
        "sentence1": first, "sentence2": second, "start1": len(first) - 1, "end1": len(first),
        "start2": len(second) - 1, "end2": len(second), "label": all(map(_half, words)), "idx": index,
    }  # fmt: skip
