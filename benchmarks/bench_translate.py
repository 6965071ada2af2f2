"""Text to text: `mtmoe translate` against fairseq-interactive, evaluation's search, and servers of the same model.

    python benchmarks/bench_translate.py --write

The commands are timed from start to end, each in a process of its own, on the same file and the same lines; searches
in this process on models that are loaded. The model has random weights and the lines are random words: all
translations have as many words. Hugging Face's `generate` and CTranslate2 in float32 serve what `mtmoe export-hf`
makes of the model.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean

import torch
from measure import Report, benchmark, run
from timing import ROOT, Floor, interleaved
from wmt15_models import FULL, SMALL, Size

from fairseq_mtmoe import register
from fairseq_mtmoe.cli._shared import quiet_fairseq
from fairseq_mtmoe.translation.decode.decode import Decoding
from fairseq_mtmoe.translation.decode.text_translator import TextTranslator
from fairseq_mtmoe.translation.decode.translator import Translator

sys.path.insert(0, str(ROOT))

from tests.helpers.translated_text import make_text_data
from tests.helpers.untrained import save_model

INTERACTIVE, TRANSLATE = "fairseq-interactive --buffer-size 1000", "mtmoe translate"
EVALUATE, SEARCH = "mtmoe evaluate's search", "mtmoe translate's search"
HUGGING_FACE, CTRANSLATE2 = "Hugging Face generate", "CTranslate2, float32"
FASTER, EQUAL = Floor(1.5, at_most=False), Floor(0.95, at_most=False)
SMALL_FASTER = Floor(0.95, at_most=False)  # of few lines, the start takes most of the time
SERVED = 500  # of the lines, for what serves the exported model: `generate` takes long
BATCH = 64  # sentences of like lengths for Hugging Face, which makes no batches itself
PAIR, SOURCE, TARGET = "en-aa", "en", "aa"
LANGUAGE = ">>aa<<"  # the target's token in the exported vocabulary

Lines = list[str]
Works = dict[str, Callable[[], Lines]]


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
        "--task", "translation_heated", "--arch", "base_dense", "--lang-pairs", PAIR, "--encoder-langtok", "tgt",
        "--decoder-langtok", *size.options(),
    )  # fmt: skip
    save_model(data, folder / "model.pt", *arguments)
    return data, folder / "model.pt"


def commands(data: Path, model: Path, lines: Lines, decoding: Decoding) -> Works:
    """Return what a user types, each in a process."""
    text = "".join(f"{line}\n" for line in lines)
    search = ["--beam", decoding.beam, "--max-len-b", decoding.max_len_b, "--max-tokens", decoding.max_tokens]
    plugin = ["--user-dir", ROOT / "fairseq_mtmoe", "--task", "translation_heated"]
    stock = [data, *plugin, "-s", SOURCE, "-t", TARGET, "--path", model, "--buffer-size", 1000]

    def interactive() -> Lines:
        printed = run("fairseq-interactive", *stock, *search, text=text)
        return [line.split("\t")[2] for line in printed.split("\n") if line.startswith("D-")]

    def translate() -> Lines:
        printed = run("mtmoe", "translate", model, "--from", SOURCE, "--to", TARGET, *search, text=text)
        return printed.split("\n")[:-1]

    return {INTERACTIVE: interactive, TRANSLATE: translate}


def searches(data: Path, model: Path, lines: Lines, decoding: Decoding) -> Works:
    """Return the searches of `mtmoe evaluate` in the test set, and of `mtmoe translate` in its lines."""
    evaluation = Translator(str(data), [str(model)], decoding)
    evaluation.pair_data(PAIR, "test")  # Loads the model.
    translator = TextTranslator([str(model)], decoding)
    return {
        EVALUATE: lambda: next(evaluation.translations([PAIR], "test")).hypotheses,
        SEARCH: lambda: translator.translate(lines, source=SOURCE, target=TARGET),
    }


def hugging_face(folder: Path, lines: Lines, decoding: Decoding) -> Callable[[], Lines]:
    """Return Hugging Face's `generate` of the exported model, with lines of like lengths in a batch."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, src_lang=SOURCE, tgt_lang=TARGET)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    first = tokenizer.convert_tokens_to_ids(LANGUAGE)
    search = {"num_beams": decoding.beam, "max_new_tokens": decoding.max_len_b, "forced_bos_token_id": first}
    marked = [f"{LANGUAGE} {line}" for line in lines]
    order = sorted(range(len(lines)), key=lambda index: -len(tokenizer(marked[index]).input_ids))

    @torch.no_grad()
    def generate() -> Lines:
        texts: dict[int, str] = {}
        for start in range(0, len(order), BATCH):
            numbers = order[start : start + BATCH]
            batch = tokenizer([marked[number] for number in numbers], return_tensors="pt", padding=True)
            tokens = model.generate(**batch, **search)
            texts |= zip(numbers, tokenizer.batch_decode(tokens, skip_special_tokens=True), strict=True)
        return [texts[number] for number in range(len(lines))]

    return generate


def ctranslate2_server(folder: Path, lines: Lines, decoding: Decoding) -> Callable[[], Lines]:
    """Return CTranslate2's search of the exported model; it sorts lines by length itself."""
    import ctranslate2
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, src_lang=SOURCE, tgt_lang=TARGET)
    converted = str(folder.with_name(f"{folder.name}.ct2"))
    ctranslate2.converters.TransformersConverter(str(folder)).convert(converted)
    server = ctranslate2.Translator(converted, compute_type="float32", intra_threads=torch.get_num_threads())
    search = {"beam_size": decoding.beam, "max_decoding_length": decoding.max_len_b}
    search |= {"max_batch_size": decoding.max_tokens, "batch_type": "tokens"}

    def translate() -> Lines:
        tokens = [tokenizer.convert_ids_to_tokens(tokenizer(f"{LANGUAGE} {line}").input_ids) for line in lines]
        results = server.translate_batch(tokens, target_prefix=[[LANGUAGE]] * len(lines), **search)
        ids = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
        return tokenizer.batch_decode(ids, skip_special_tokens=True)

    return translate


def letters(line: str) -> str:
    """A line without what systems spell each in their way: spaces, and unknown pieces."""
    return "".join(line.replace("<unk>", "⁇").split())


def compare(report: Report, title: str, works: Works, own: str, floors: dict[str, Floor], repetitions: int) -> None:
    """Time works in turn, and compare their speeds with ours; those that have a floor must find the same lines."""
    found: dict[str, Lines] = {}
    timed = {name: partial(keep_lines, found, name, work) for name, work in works.items()}
    seconds = interleaved(timed, repetitions, warmups=0)
    same = {}
    for name, lines in found.items():
        both = zip(map(letters, lines), map(letters, found[own]), strict=True)
        same[name] = fmean(one == other for one, other in both)
    note = "Same lines: " + ", ".join(f"{name} {share:.1%}" for name, share in same.items()) + "."
    report.speeds(title, seconds, own, [len(found[own])] * repetitions, "lines", note)
    for name, floor in floors.items():
        assert same[name] >= 0.95, f"{name}: {same[name]:.1%} of the lines are {own}'s"
        report.ratio(f"times as fast as {name}", seconds[name], seconds[own], floor)


def keep_lines(found: dict[str, Lines], name: str, work: Callable[[], Lines]) -> None:
    found[name] = work()


@benchmark("translate", "Text to text", "A smaller model, and 300 lines instead of 3,000.", repetitions=3)
def main(report: Report, small: bool, repetitions: int) -> None:
    """Print lines per second, and how many times as fast as each other system ours is."""
    register()
    size, count, faster = (SMALL, 300, SMALL_FASTER) if small else (FULL, 3000, FASTER)
    lines = random_lines(count)
    decoding = Decoding(beam=5, max_len_b=20, max_tokens=12000)
    threads = torch.get_num_threads()
    report.text(f"{len(lines):,} lines, beam {decoding.beam}, {decoding.max_len_b} words at most, {threads} threads.")
    with quiet_fairseq(), tempfile.TemporaryDirectory() as folder:
        data, model = make_model(Path(folder), size, lines)
        exported = Path(folder) / "exported"
        run("mtmoe", "export-hf", model, exported)
        works = commands(data, model, lines, decoding)
        compare(report, "Commands, from start to end", works, TRANSLATE, {INTERACTIVE: faster}, repetitions)
        works = searches(data, model, lines, decoding)
        compare(report, "Searches, of loaded models", works, SEARCH, {EVALUATE: EQUAL}, repetitions)
        some = lines[:SERVED]
        works = {SEARCH: searches(data, model, some, decoding)[SEARCH]}
        works[HUGGING_FACE] = hugging_face(exported, some, decoding)
        if importlib.util.find_spec("ctranslate2") is not None:
            works[CTRANSLATE2] = ctranslate2_server(exported, some, decoding)
        compare(report, f"Servers of the exported model, {len(some)} lines", works, SEARCH, {}, repetitions)


if __name__ == "__main__":
    main()
