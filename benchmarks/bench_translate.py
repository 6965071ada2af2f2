"""Text to text: `mtmoe translate` against fairseq-interactive, evaluation's search, and servers of the same model.

    python benchmarks/bench_translate.py --write
    python benchmarks/bench_translate.py --data DATA --model RUN/checkpoint_best.pt --pair en-de --exported FOLDER

The commands are timed from start to end, each in a process of its own, on the same file and the same lines; searches in
this process on models that are loaded. By default the model has random weights and the lines are random words: each
translation has as many words as `--words` says. Hugging Face's `generate` and CTranslate2 in float32 serve what `mtmoe
export-hf` made of the model, which is FOLDER for a MODEL of your own.
"""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import torch
from measure import Report, interleaved, report_name, report_options
from timing import ROOT, Floor, Ratio
from wmt15_models import FULL, SMALL, Size

from fairseq_mtmoe import register
from fairseq_mtmoe.cli._shared import quiet_fairseq
from fairseq_mtmoe.evaluation.decode import Decoding
from fairseq_mtmoe.evaluation.text_translator import TextTranslator
from fairseq_mtmoe.evaluation.translator import Translator

sys.path.insert(0, str(ROOT))

from tests.helpers.translated_text import make_text_data, sources
from tests.helpers.untrained import save_model

INTERACTIVE, TRANSLATE = "fairseq-interactive --buffer-size 1000", "mtmoe translate"
EVALUATE, SEARCH = "mtmoe evaluate's search", "mtmoe translate's search"
HUGGING_FACE, CTRANSLATE2 = "Hugging Face generate", "CTranslate2, float32"
FASTER, EQUAL = Floor(1.5, at_most=False), Floor(0.95, at_most=False)
SERVED = 500  # of the lines, for what serves the exported model: `generate` takes long
BATCH = 64  # sentences of like lengths for Hugging Face, which makes no batches itself

Lines = list[str]


def random_lines(count: int, seed: int = 1) -> Lines:
    """Sentences of 4 to 40 words, which are of any letters and as frequent as words are."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(20_000)]
    shares = [1 / (rank + 10) for rank in range(len(words))]
    return [" ".join(draw.choices(words, shares, k=min(40, 4 + int(draw.expovariate(0.1))))) for _ in range(count)]


def make_model(folder: Path, size: Size, lines: Lines) -> tuple[Path, Path]:
    """A data directory of these lines, and a dense model with random weights, which hardly ever ends a sentence."""
    data = make_text_data(folder / "data", lines, vocab_size=8000)
    arguments = (
        "--task", "translation_heated", "--arch", "base_dense", "--lang-pairs", "en-aa", "--encoder-langtok", "tgt",
        "--decoder-langtok", *size.options(),
    )  # fmt: skip
    save_model(data, folder / "model.pt", *arguments)
    return data, folder / "model.pt"


class Commands:
    """What a user types, in processes; the lines that come of it."""

    def __init__(self, data: Path, model: Path, pair: str, lines: Lines, beam: int, words: int) -> None:
        self.source, self.target = pair.split("-")
        self.data, self.model, self.text = data, model, "".join(f"{line}\n" for line in lines)
        self.search = ["--beam", str(beam), "--max-len-b", str(words), "--max-tokens", "12000"]

    def interactive(self) -> Lines:
        found = self._run(
            "fairseq-interactive", str(self.data), "--user-dir", str(ROOT / "fairseq_mtmoe"), "--task",
            "translation_heated", "-s", self.source, "-t", self.target, "--path", str(self.model), "--buffer-size",
            "1000", *self.search,
        )  # fmt: skip
        return [line.split("\t")[2] for line in found.split("\n") if line.startswith("D-")]

    def translate(self) -> Lines:
        options = ["--from", self.source, "--to", self.target]
        return self._run("mtmoe", "translate", str(self.model), *options, *self.search).split("\n")[:-1]

    def _run(self, command: str, *arguments: str) -> str:
        return run(command, *arguments, text=self.text)


def run(command: str, *arguments: str, text: str = "") -> str:
    """Return what a command of this environment prints about the text."""
    program = str(Path(sys.executable).with_name(command))
    done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def searches(data: Path, model: Path, pair: str, lines: Lines, decoding: Decoding) -> dict[str, Callable[[], Lines]]:
    """The searches of `mtmoe evaluate` in the test set, and of `mtmoe translate` in its lines."""
    source, target = pair.split("-")
    evaluation = Translator(str(data), [str(model)], decoding)
    evaluation.pair_data(pair, "test")  # loads the model
    translator = TextTranslator([str(model)], decoding)
    return {
        EVALUATE: lambda: evaluation.translate(pair, "test").hypotheses,
        SEARCH: lambda: translator.translate(lines, source=source, target=target),
    }


def servers(folder: Path, pair: str, lines: Lines, decoding: Decoding, begins: bool) -> dict[str, Callable[[], Lines]]:
    """What serves the exported model, of what is installed: each with the longest sentences first.

    `begins`: whether translations begin with the target language's token.
    """
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    source, target = pair.split("-")
    tokenizer = AutoTokenizer.from_pretrained(folder, src_lang=source, tgt_lang=target)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    marked, spelled = f">>{target}<<", {target, f"__{target}__", f">>{target}<<"}
    if marked in tokenizer.get_vocab():  # in the forms of Marian's tokenizer it is part of the text
        lines = [f"{marked} {line}" for line in lines]
    code = next((token for token in spelled if begins and token in tokenizer.get_vocab()), None)
    order = sorted(range(len(lines)), key=lambda index: -len(tokenizer(lines[index]).input_ids))
    forced = {} if code is None else {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(code)}

    def in_order(texts: Sequence[str]) -> Lines:
        return [text for _, text in sorted(zip(order, texts, strict=True))]

    @torch.no_grad()
    def generate() -> Lines:
        texts: Lines = []
        for start in range(0, len(order), BATCH):
            batch = tokenizer(
                [lines[index] for index in order[start : start + BATCH]], return_tensors="pt", padding=True
            )
            found = model.generate(**batch, **forced, num_beams=decoding.beam, max_new_tokens=decoding.max_len_b)
            texts += tokenizer.batch_decode(found, skip_special_tokens=True)
        return in_order(texts)

    works: dict[str, Callable[[], Lines]] = {HUGGING_FACE: generate}
    if importlib.util.find_spec("ctranslate2") is not None:
        works[CTRANSLATE2] = _ctranslate2(
            folder, tokenizer, code, [lines[index] for index in order], decoding, in_order
        )
    return works


def _ctranslate2(
    folder: Path, tokenizer: Any, code: str | None, lines: Lines, decoding: Decoding,
    in_order: Callable[[Sequence[str]], Lines],
) -> Callable[[], Lines]:  # fmt: skip
    import ctranslate2

    converted = folder.with_name(f"{folder.name}.ct2")
    ctranslate2.converters.TransformersConverter(str(folder)).convert(str(converted), force=True)
    server = ctranslate2.Translator(str(converted), compute_type="float32", intra_threads=torch.get_num_threads())
    prefix = None if code is None else [code]

    def translate() -> Lines:
        tokens = [tokenizer.convert_ids_to_tokens(tokenizer(line).input_ids) for line in lines]
        found = server.translate_batch(
            tokens, target_prefix=prefix and [prefix] * len(tokens), beam_size=decoding.beam, max_batch_size=12000,
            batch_type="tokens", max_decoding_length=decoding.max_len_b,
        )  # fmt: skip
        ids = [tokenizer.convert_tokens_to_ids(one.hypotheses[0]) for one in found]
        return in_order(tokenizer.batch_decode(ids, skip_special_tokens=True))

    return translate


def letters(line: str) -> str:
    """A line without what systems spell each in their way: spaces in words that are none, and unknown pieces."""
    return "".join(line.replace("<unk>", "⁇").split())


def compare(report: Report, title: str, works: dict[str, Callable[[], Lines]], own: str, peers: dict[str, Floor | None],
            repetitions: int) -> None:  # fmt: skip
    """Time works in turn, assert that the equal ones find the same, and report how many times as fast ours is."""
    found: dict[str, Lines] = {}
    timed = {name: (lambda name=name: found.update({name: works[name]()})) for name in works}  # type: ignore[misc]
    seconds = interleaved(timed, repetitions, warmups=0)
    rows: list[list[object]] = []
    for name, taken in seconds.items():
        ratio = Ratio.of(taken, seconds[own])
        both = zip(map(letters, found[name]), map(letters, found[own]), strict=True)
        same = sum(one == other for one, other in both) / len(found[own])
        rows.append([name, len(found[own]) / Ratio.of(taken, [1.0] * len(taken)).median, str(ratio), f"{same:.1%}"])
        if floor := peers.get(name):
            assert same >= 0.95, f"{name}: {same:.1%} of the lines are {own}'s"
            report.figure(f"times as fast as {name}", ratio.median, floor, (ratio.low, ratio.high))
    report.table(title, ["system", "lines/s", "ours is times as fast (quartiles)", "same lines"], rows)
    report.raw(title, seconds)


@click.command(context_settings={"show_default": True})
@click.option("--lines", "count", default=3000)
@click.option("--beam", default=5)
@click.option("--words", default=20, help="At most, of each translation.")
@click.option("--repetitions", default=3)
@click.option("--data", type=click.Path(path_type=Path), help="A data directory of `mtmoe prepare`; with --model.")
@click.option("--model", type=click.Path(path_type=Path), help="A checkpoint of it.")
@click.option("--pair", default="en-aa", help="Of its test sets.")
@click.option("--exported", type=click.Path(path_type=Path), help="The folder of `mtmoe export-hf` of this model.")
@report_options("A smaller model.")
def main(
    count: int, beam: int, words: int, repetitions: int, data: Path | None, model: Path | None, pair: str,
    exported: Path | None, small: bool, check: bool, write: bool,
) -> None:  # fmt: skip
    """Print lines per second, and how many times as fast as each other system ours is."""
    register()
    size = SMALL if small or check else FULL
    count, repetitions = (300, 1) if check else (count, repetitions)
    report = Report(report_name("translate", size is SMALL), "Text to text")
    with quiet_fairseq(), tempfile.TemporaryDirectory() as folder:
        if data is None or model is None:
            data, model = make_model(Path(folder), size, random_lines(count))
            exported = Path(folder) / "exported"
            run("mtmoe", "export-hf", str(model), str(exported))
        lines = sources(data, pair)[:count]
        report.text(f"{len(lines):,} lines, beam {beam}, {words} words at most, {torch.get_num_threads()} threads.")
        decoding = Decoding(beam=beam, max_len_b=words, max_tokens=12000)
        commands = Commands(data, model, pair, lines, beam, words)
        works = {INTERACTIVE: commands.interactive, TRANSLATE: commands.translate}
        compare(report, "Commands, from start to end", works, TRANSLATE, {INTERACTIVE: FASTER}, repetitions)
        works = searches(data, model, pair, lines, decoding)
        compare(report, "Searches, of loaded models", works, SEARCH, {EVALUATE: EQUAL}, repetitions)
        if exported is not None:
            forms = TextTranslator([str(model)], decoding).forms
            begins = forms.first_token(pair.split("-")[1]) is not None
            some = lines[:SERVED]
            works = {**searches(data, model, pair, some, decoding), **servers(exported, pair, some, decoding, begins)}
            del works[EVALUATE]
            compare(report, f"Servers of the exported model, {len(some)} lines", works, SEARCH, {}, repetitions)
    report.finish(write, check)


if __name__ == "__main__":
    main()
