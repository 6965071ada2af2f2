"""A made benchmark in the official files' form, and an encoder that knows nothing of it."""

import gzip
import json
import random
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf
from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

from fairseq_mtmoe.backbones.bert.pretrained import PretrainedEncoder
from tests.helpers.bert import TINY, perturb, tiny_encoder
from tests.helpers.commands import PLUGIN, run, run_joined

LETTERS = "abcdefghij"  # the first half is what all tasks are about
QUESTIONS = ["what", "was", "the", "cause", "of", "this", "happened", "as", "result", ".", "?"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, *QUESTIONS]
TASKS = "cola,stsb,copa,wic"


def make_benchmark(folder: Path, sizes: dict[str, int]) -> None:
    """Write `sizes` examples of the splits `train` and `dev`.

    CoLA says whether the first letter is of the first half, STS-B at which place of the alphabet it is; COPA's right
    choice is of the first half; WiC says whether both words are, RTE whether the second sentence's first letter is.
    """
    draw = random.Random(7)
    for split, count in sizes.items():
        _write(folder / "CoLA" / f"{split}.tsv", [_cola(draw) for _ in range(count)])
        header = "index\tsentence1\tsentence2\tscore"
        _write(folder / "STS-B" / f"{split}.tsv", [header, *(f"{n}\t{_stsb(draw)}" for n in range(count))])
        header = "index\tsentence1\tsentence2\tlabel"
        _write(folder / "RTE" / f"{split}.tsv", [header, *(f"{n}\t{_rte(draw)}" for n in range(count))])
        name = {"dev": "val"}.get(split, split)
        _write(folder / "COPA" / f"{name}.jsonl", [json.dumps(_copa(draw, n)) for n in range(count)])
        _write(folder / "WiC" / f"{name}.jsonl", [json.dumps(_wic(draw, n)) for n in range(count)])


def make_words_and_entities(folder: Path, sizes: dict[str, int]) -> None:
    """Write as many examples of WNUT-17 and ReCoRD: entities are runs of letters of the first half, and right if so."""
    draw = random.Random(13)
    names = {"train": "wnut17train.conll", "dev": "emerging.dev.conll", "test": "emerging.test.annotated"}
    for split, count in sizes.items():
        _write(folder / "WNUT17" / names[split], [line for _ in range(count) for line in _sentence(draw)])
        name = {"dev": "val"}.get(split, split)
        _write(folder / "ReCoRD" / f"{name}.jsonl", [json.dumps(_record(draw, n)) for n in range(count)])


def make_related_task(folder: Path, train: int, dev: int) -> Path:
    """Write a task `mine`, CoLA's rule with labels of its own, and the table of it, which is returned.

    Its training examples begin with four of the letters, the others with the rest: who does not know of the letters'
    halves from elsewhere cannot learn the rule.
    """
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
    """Write `sizes` questions of the splits `train` and `dev` of SQuAD in MRQA's form, packed.

    Passages are letters of the first half, and the answer is the run of others among them, some of which are capitals;
    most passages have more letters than a window of 24 tokens, and two questions each.
    """
    draw = random.Random(13)
    for split, count in sizes.items():
        lines = [json.dumps({"header": {"dataset": "SQuAD", "split": split}})]
        lines += [json.dumps(_passage(draw, f"{split}-{n}")) for n in range(count // 2)]
        path = folder / "MRQA" / split / "SQuAD.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


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
    serialized: str = BertWordPieceTokenizer(vocabulary)._tokenizer.to_str()
    return serialized


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


def train_tasks(data: object, save_dir: object, *args: object) -> str:
    result = run("fairseq-train", *task_arguments(data, save_dir, *args))
    return str(result.stdout) + str(result.stderr)


def validate(data: object, checkpoint: object, *args: object, joined: int = 1) -> subprocess.CompletedProcess:
    """`fairseq-validate` of a checkpoint, in one process or in several."""
    command = (
        "fairseq-validate", data, *PLUGIN, "--task", "glue", "--path", checkpoint, "--batch-size", 16, "--cpu",
        "--log-format", "json", "--no-progress-bar", "--num-workers", 0, *args,
    )  # fmt: skip
    return run_joined(joined, *command) if joined > 1 else run(*command)


def validated(output: subprocess.CompletedProcess) -> dict[str, float]:
    return logged(output.stdout + output.stderr, "all")


def logged(output: str, name: str) -> dict[str, float]:
    """The last of the lines of JSON that say a figure of this name, in validation or training."""
    lines = [line for line in output.splitlines() if re.search(rf'"(train_|valid_)?{name}"', line)]
    found = re.search(r"{.*}", lines[-1])
    assert found
    figures = json.loads(found[0]).items()
    return {key.removeprefix("train_").removeprefix("valid_"): float(value) for key, value in figures}


def make_unlabelled(folder: Path) -> None:
    """Write the examples of `dev` as the test data of the benchmarks: without labels, under numbers from 1000 on."""

    def numbered(name: str) -> list[tuple[int, list[str]]]:
        lines = (folder / name).read_text(encoding="utf-8").splitlines()
        return [(1000 + n, line.split("\t")) for n, line in enumerate(lines if "CoLA" in name else lines[1:])]

    _write(folder / "CoLA" / "test.tsv", ["index\tsentence", *(f"{n}\t{f[3]}" for n, f in numbered("CoLA/dev.tsv"))])
    lines = [f"{n}\t{f[2]}\t{f[1]}" for n, f in numbered("STS-B/dev.tsv")]
    _write(folder / "STS-B" / "test.tsv", ["index\tsentence2\tsentence1", *lines])
    lines = [f"{n}\t{f[1]}\t{f[2]}" for n, f in numbered("RTE/dev.tsv")]
    _write(folder / "RTE" / "test.tsv", ["index\tsentence1\tsentence2", *lines])
    for name in ("COPA", "WiC"):
        records = [json.loads(line) for line in (folder / name / "val.jsonl").read_text(encoding="utf-8").splitlines()]
        unlabelled = [{key: value for key, value in record.items() if key != "label"} for record in records]
        lines = [json.dumps({**record, "idx": 1000 + n}) for n, record in enumerate(unlabelled)]
        _write(folder / name / "test.jsonl", lines)


def save_untrained(data: Path, path: Path, *args: object) -> None:
    """A checkpoint of such a model before its first update, with the encoder `data/encoder.pt`; `args` come last."""
    save_before_training(task_arguments(data, path.parent, "--init-encoder", data / "encoder.pt", *args), path)


def save_before_training(
    arguments: Iterable[object], path: Path, change: Callable[[torch.nn.Module], None] | None = None, seed: int = 1
) -> None:
    """A checkpoint of what these arguments of `fairseq-train` train, before its first update."""
    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, list(map(str, arguments))))
    torch.manual_seed(seed)
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    (change or _differ)(model)
    state = {
        "args": None,
        "cfg": OmegaConf.to_container(cfg, resolve=True),
        "model": model.state_dict(),
        "task_state": task.state_dict(),
        "optimizer_history": [{"num_updates": 0, "optimizer_name": "adam", "lr_scheduler_state": {}}],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
    }
    torch.save(state, path)


def _differ(model: torch.nn.Module) -> None:
    perturb(model, 0.5, seed=4)  # its predictions differ


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


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
    places = [{"start": 2 * n, "end": 2 * n} for n in range(len(entities))]
    return {
        "idx": index, "passage": {"text": " ".join(entities), "entities": places},
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
    places = [draw.randint(0, 2) for _ in words]
    texts = [" ".join([*draw.choices(LETTERS, k=place), word]) for place, word in zip(places, words, strict=True)]
    ends = [len(text) for text in texts]
    return {
        "sentence1": texts[0], "sentence2": texts[1], "start1": ends[0] - 1, "end1": ends[0], "start2": ends[1] - 1,
        "end2": ends[1], "label": _half(words[0]) == 1 and _half(words[1]) == 1, "idx": index,
    }  # fmt: skip
