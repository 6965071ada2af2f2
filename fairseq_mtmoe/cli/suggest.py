"""`mtmoe suggest`: a commented training for a data directory and this machine."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from fairseq_mtmoe import __version__
from fairseq_mtmoe.cli._shared import PATH
from fairseq_mtmoe.cli._sizes import (
    LEAST_PASSES,
    SIZES,
    VALIDATIONS,
    Plan,
    Size,
    Trial,
    first_choice,
    least_hours,
    plan,
)
from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.files import read_text
from fairseq_mtmoe.report import run_log
from fairseq_mtmoe.translation.data.file_names import indexed_sides, joined_dictionary, side_name
from fairseq_mtmoe.translation.data.recorded_sizes import with_shards

UPDATES = 30  # of a trial
UNTIMED = 6  # the first updates, which allocate memory
MINUTES = 3  # of all trials together; the last one ends with its update
PATIENCE = 3  # validations
# Greedy, and with a limit of length, as a model of few updates does not end its sentences.
SEARCH = '{"beam": 1, "max_len_a": 2, "max_len_b": 10}'
NUM_EXPERTS = 8  # with more languages; with so many or fewer, one for each
ENVIRONMENT = {  # of the trial and the script, where a user sets nothing else
    "OMP_WAIT_POLICY": "PASSIVE",
    "PYTHONWARNINGS": "ignore::FutureWarning:fairscale.experimental.nn.offload",
}
Part = tuple[str, str]  # a comment, and the options that it explains, as a shell reads them


@click.command("suggest")
@click.argument("data")
@click.option(
    "--hours",
    type=click.FloatRange(0, min_open=True),
    help="Maximum training time on this machine, in hours; by default as long as the model needs.",
)
@click.option("--lang-pairs", help="Language pairs such as en-de,en-fr. [default: all of DATA]")
@click.option(
    "--save-dir",
    type=PATH,
    default="RUN",
    help="Folder for the checkpoints.",
)
@click.option("--cpu", is_flag=True, help="Do not use a GPU.")
def command(
    data: str, hours: float | None, lang_pairs: str | None, save_dir: Path, cpu: bool
) -> None:
    """Print a commented fairseq-train command for DATA.

    DATA is a directory of `mtmoe prepare corpora`. The number of sentence pairs determines the
    model's size. With one target language the model is dense. With up to 8 targets, each target
    language has its own expert; with more, 8 experts have task gates. A trial of 30 updates on this
    machine measures time and memory. If --hours allows fewer than 5 passes over the data, a smaller
    model is chosen. All trials together take at most three minutes, plus the time to start them.

    \b
    mtmoe suggest DATA --hours 8 > train.sh
    bash train.sh
    """
    named_pairs = lang_pairs or listed_pairs(data)
    train = sizes_of(data, "train", named_pairs)
    held_out = sizes_of(data, "valid", named_pairs)
    if not train:
        raise UserError(
            f"`{data}` has no prepared training text; if it is a folder of text, run `mtmoe "
            f"prepare corpora {shlex.quote(data)} DATA --recipe folder`, then `mtmoe suggest DATA`."
        )
    pairs = sum(train.values())
    held = sum(held_out.values())
    candidates = SIZES[first_choice(pairs) :: -1]  # the largest first
    if hours is None:
        candidates = candidates[:1]
    for size in candidates:
        options = model_options(data, size, train)
        options += data_options(data, size, train, lang_pairs, cpu)
        minutes = MINUTES / len(candidates)
        click.echo(
            f"Trying {UPDATES} updates of width {size.width}, for {minutes:.1f} minutes at most …",
            err=True,
        )
        chosen = None
        trial = run_trial(data, options, minutes)
        if trial is not None:
            chosen = plan(size, trial, pairs, held, hours)
            if chosen.passes >= LEAST_PASSES:
                break
    if trial is None or chosen is None:
        raise UserError(
            f"Two updates on `DATA` take longer than {minutes:.1f} minutes, the most that a trial "
            "may take."
        )
    options += length_options(size, chosen, str(save_dir))
    remarks = remarks_on(trial, size, chosen, hours, least_hours(trial, pairs, held))
    click.echo("\n".join(remarks), err=True)
    click.echo(script(data, options, train, remarks), nl=False)


def list_of_pairs(data: str) -> Path:
    """Return the file in which `mtmoe prepare` lists the directions to train."""
    return Path(data.split(os.pathsep)[0], "lang_pairs.txt")


def listed_pairs(data: str) -> str | None:
    """Return the listed directions, maybe more than DATA has; None without a list."""
    file = list_of_pairs(data)
    return ",".join(read_text(file).replace(",", "\n").split()) if file.is_file() else None


def languages(data: str, sizes: Mapping[str, int]) -> list[str]:
    """Return the model's languages: those that `mtmoe prepare` lists, or the pairs'."""
    file = list_of_pairs(data).with_name("langs.txt")
    if file.is_file():
        return read_text(file).split()
    return sorted({lang for pair in sizes for lang in pair.split("-")})


def sizes_of(data: str, split: str, lang_pairs: str | None) -> dict[str, int]:
    """Return the number of sentences of each language pair, over all shards.

    lang_pairs: the selected pairs; by default all.

    Raises:
        UserError: a folder is missing, or has no training data of a selected pair.
    """
    # This module loads numpy, which --help does without.
    from fairseq_mtmoe.training.indexed_files import count_sentences

    counts: Counter[str] = Counter()
    shards = with_shards(data).split(os.pathsep)
    for folder in shards if split == "train" else shards[:1]:  # validation reads the first alone
        if not Path(folder).is_dir():
            raise UserError(
                f"There is no data directory `{folder}`: make one with `mtmoe prepare corpora`."
            )
        for side in indexed_sides(folder):
            if side.split == split and side.lang == side.source:
                path = Path(folder, side_name(split, side.pair, side.lang))
                counts[side.pair] += count_sentences(str(path)) or 0
    if lang_pairs is None:
        return dict(counts)
    wanted = {
        pair: counts[pair] or counts["-".join(reversed(pair.split("-")))]
        for pair in lang_pairs.split(",")
    }
    if split == "train" and (missing := [pair for pair, count in wanted.items() if not count]):
        raise_invalid(
            "--lang-pairs", f"pairs of DATA, which has {', '.join(counts) or 'none'}", missing[0]
        )
    return wanted


def model_options(data: str, size: Size, sizes: Mapping[str, int]) -> list[Part]:
    """Return the model's options: experts where the decoder writes several languages."""
    targets = {pair.split("-")[1] for pair in sizes}
    experts: Part = (
        "One target language: no experts. `mtmoe export-hf` exports the model for CTranslate2.",
        "--arch base_dense",
    )
    if len(targets) > 1:
        what = (
            "experts, and a gate of each language chooses among them. `mtmoe translate` serves "
            "them; `mtmoe export-hf` cannot"
        )
        chosen = f"{NUM_EXPERTS} --expert-gates task"
        if len(targets) <= NUM_EXPERTS:
            what = (
                "every second feed-forward layer is a language's own. `mtmoe export-hf --to all` "
                "exports a dense model for each, for CTranslate2"
            )
            chosen = f"{len(targets)} --expert-gates fixed"
        experts = (
            f"{len(targets)} target languages: {what}.",
            f"--arch base_moe --num-experts {chosen}",
        )
    normalized = "--encoder-normalize-before --decoder-normalize-before"
    first, *_ = with_shards(data).split(os.pathsep)
    if joined_dictionary(first) is not None:
        normalized += " --share-all-embeddings"
    sides = []
    for side in ("encoder", "decoder"):
        sides.append(
            f"--{side}-layers {size.layers} --{side}-embed-dim {size.width} "
            f"--{side}-ffn-embed-dim {size.inner} --{side}-attention-heads {size.heads}"
        )
    return [
        experts,
        (f"A model for {sum(sizes.values()):,} sentence pairs.", " ".join(sides)),
        ("Normalization before each layer allows high learning rates.", normalized),
        ("Less data needs more dropout.", f"--dropout {size.dropout}"),
    ]


def data_options(
    data: str, size: Size, sizes: Mapping[str, int], lang_pairs: str | None, cpu: bool
) -> list[Part]:
    """Return the options of the task, loss and batches."""
    file = list_of_pairs(data)
    named = ",".join(sizes)
    if lang_pairs is None and file.is_file():
        named = shlex.quote(str(file))
    task = f"--task translation_heated --lang-pairs {named} --encoder-langtok tgt --decoder-langtok"
    if not file.with_name("langs.txt").is_file():
        task += f" --langs {','.join(languages(data, sizes))}"
    temperature = "--sampling-method temperature --sampling-temperature 1.5"
    loss = (
        "--criterion moe_label_smoothed_cross_entropy --label-smoothing 0.1 "
        "--optimizer fused_adam --adam-betas '(0.9, 0.98)' --clip-norm 1"
    )
    batch = f"--max-tokens {size.max_tokens}"
    parts: list[Part] = [("Both sides name the target language.", task)]
    if len(sizes) > 1:
        parts.append(("Small language pairs are drawn more often: by size^(1/1.5).", temperature))
    parts.append(("The fast loss and Adam.", loss))
    parts.append(("Tokens of a batch, padding included. Lower it if memory runs out.", batch))
    if cpu:
        parts.append(("No GPU.", "--cpu"))
    return parts


def length_options(size: Size, schedule: Plan, save_dir: str) -> list[Part]:
    """Return the options of the rate, the length, the validations and the checkpoints."""
    rate = f"--lr {size.lr} --lr-scheduler inverse_sqrt --warmup-updates {schedule.warmup}"
    saved = (
        f"--virtual-epoch-size {schedule.epoch} --validate-interval {schedule.every} "
        f"--save-interval {schedule.every} --keep-last-epochs 5"
    )
    validations = (
        f"About {VALIDATIONS} validations, at ends of epochs. With twice the updates, double both "
        "intervals."
    )
    best = (
        f"--eval-chrf --eval-bleu-args '{SEARCH}' --best-checkpoint-metric chrf "
        "--maximize-best-checkpoint-metric --eval-bleu-print-samples"
    )
    scored = (
        "Validations translate: the best checkpoint has the highest chrF++; a sentence of each "
        "pair is shown."
    )
    early = f"The run ends after {PATIENCE} validations without a better one."
    resumed = f"--save-dir {shlex.quote(save_dir)} --log-format rich --log-interval 25"
    parts: list[Part] = [
        (f"The rate is {size.reason}.", rate),
        (f"{length_of(size, schedule)}.", f"--max-update {schedule.updates}"),
        (validations, saved),
    ]
    if schedule.is_scored:
        parts.append((scored, best))
    if schedule.passes >= LEAST_PASSES:
        parts.append((early, f"--patience {PATIENCE}"))
    parts.append(("A second start resumes here.", resumed))
    return parts


def length_of(size: Size, schedule: Plan) -> str:
    """Return the number of passes over the data, and the number that the size needs."""
    return f"{schedule.passes:.2g} of {size.passes} recommended passes over the data"


def run_trial(data: str, options: Sequence[Part], minutes: float) -> Trial | None:
    """Train for some updates in a process of its own, and return what they took.

    None: there was no time for two updates.

    Raises:
        UserError: the training failed, with its last line.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "fairseq_cli.train", data]
        program += ["--user-dir", str(Path(__file__).parents[1]), "--save-dir", folder]
        trial = (
            f"--max-update {UPDATES} --stop-time-hours {minutes / 60} --lr 1e-4 --no-save "
            "--disable-validation --log-format json --log-interval 1"
        )
        for _, words in [*options, ("", trial)]:
            program += shlex.split(words)
        with open(Path(folder, "train.out"), "w+b") as output:
            environment = ENVIRONMENT | os.environ
            process = subprocess.Popen(
                program, stdout=output, stderr=subprocess.STDOUT, env=environment
            )
            try:
                _, status, used = os.wait4(process.pid, 0)
            except BaseException:
                process.kill()
                raise
            output.seek(0)
            told = output.read().decode(errors="replace").strip()
        if status:
            raise UserError(
                f"The trial run on `DATA` failed: {(told or 'no output').splitlines()[-1]}"
            )
        log = run_log.read(Path(folder, run_log.FILE_NAME))
        events = [event for event in log if event["event"] == "train"]
        if len(events) < 2:
            return None
        return measured(events, used.ru_maxrss / 2**20)


def measured(events: Sequence[run_log.Event], memory: float) -> Trial:
    """Return what the run log's `train` events say of the updates that are timed.

    Args:
        memory: GiB of the process, which counts without a GPU.
    """
    first = events[min(UNTIMED, len(events) // 2) - 1]
    last = events[-1]
    timed = events[events.index(first) + 1 :]
    seconds = 60 * (last["minutes"] - first["minutes"]) / (last["update"] - first["update"])
    sentences = sum(event["bsz"] for event in timed) / len(timed)
    left = [event["gb_free"] for event in timed if event.get("gb_free") is not None]
    return Trial(seconds, sentences, memory, min(left, default=None))


def remarks_on(
    trial: Trial, size: Size, schedule: Plan, hours: float | None, enough: float
) -> list[str]:
    """Return lines on time, memory and length; `enough` hours are for few passes."""
    memory = f"{trial.memory:.1f} GiB of memory"
    if trial.gpu_left is not None:
        memory += f"; it leaves {trial.gpu_left:.1f} GiB of the GPU free"
    time_needed = f"{schedule.updates:,} updates in {schedule.hours:,.2f} hours"
    time_needed += f", of {trial.seconds:.2f} s each"
    lines = [f"Estimate: {time_needed}; {memory}.", f"Length: {length_of(size, schedule)}."]
    if schedule.passes < LEAST_PASSES and hours is not None:
        few = f"{schedule.passes:.2g} passes over the data are few"
        lines.append(
            f"--hours {hours:g} is short: {few}. --hours {enough:g} is enough for {LEAST_PASSES} "
            "passes."
        )
    return lines


def script(
    data: str, options: Sequence[Part], sizes: Mapping[str, int], remarks: Sequence[str]
) -> str:
    """Return a shell script's lines: remarks, and options with a comment per group."""
    first = (
        f"Suggested by mtmoe {__version__} for {sum(sizes.values()):,} sentence pairs; directions: "
        f"{len(sizes)}."
    )
    head = "".join(f"# {line}\n" for line in (first, *remarks))
    groups = "".join(f"    # {comment}\n    {words}\n" for comment, words in options)
    run = f'fairseq-train {shlex.quote(data)} --user-dir "$(mtmoe user-dir)" "${{options[@]}}" "$@"'
    waiting = (
        "# Waiting threads leave their cores to other programs; fairscale's warnings are not about "
        "this run.\n"
    )
    exports = "".join(
        f'export {name}="${{{name}:-{value}}}"\n' for name, value in ENVIRONMENT.items()
    )
    return f"{head}options=(\n{groups})\n{waiting}{exports}{run}\n"
