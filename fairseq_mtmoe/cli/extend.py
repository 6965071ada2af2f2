"""`mtmoe extend`: a translator with one more language."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairseq_mtmoe.cli._shared import (
    PATH,
    expect_checkpoints,
    list_option,
    overwrite_option,
    quiet_fairseq,
)
from fairseq_mtmoe.cli._vocabulary import vocabulary_in
from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.files import output_file, text_lines
from fairseq_mtmoe.core.normalisation import normalise

if TYPE_CHECKING:
    from fairseq_mtmoe.translation.data.new_language import Extended, Rows
    from fairseq_mtmoe.translation.data.vocabulary import Side, Vocabulary


@click.command("extend")
@click.argument("model", metavar="MODEL", type=PATH)
@click.argument("output", metavar="OUT", type=PATH)
@click.option(
    "--language",
    "lang",
    required=True,
    metavar="CODE",
    help="Code of the new language, in the model's form, such as nyn_Latn for NLLB.",
)
@click.option(
    "--text",
    type=PATH,
    required=True,
    metavar="FILE",
    help="Text in the new language, UTF-8, one sentence per line.",
)
@list_option(
    "--like",
    metavar="CODE[,CODE…]",
    help="Languages of the model; the new code starts as their mean, and with --expert-gates fixed "
    "the new expert as a copy of the expert of the first that has one.  [default: all]",
)
@click.option(
    "--new-pieces",
    type=click.IntRange(0),
    default=2000,
    help="Maximum number of new subword pieces besides letters; each occurs at least ten times in "
    "FILE.",
)
@click.option(
    "--held-text",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="Text in one of the model's languages: print the share of its lines that the new "
    "vocabulary splits differently; repeatable.",
)
@overwrite_option
@quiet_fairseq()
def command(
    model: Path, output: Path, lang: str, text: Path, like: Sequence[str],
    new_pieces: int, held_text: Sequence[Path], overwrite: bool,
) -> None:  # fmt: skip
    """Add a language to the translator MODEL, and write it to OUT.

    OUT has the language's code, its letters and frequent pieces of its words. MODEL is a file of
    `mtmoe import-hf`, or a checkpoint of a run on data of `mtmoe prepare`. New symbols are
    appended, so that old ones keep their indices; the model reads and writes its old languages
    without them. A new piece's embedding is the mean of the old pieces that it replaces; a letter's
    is the mean of all. The optimizer state is left out. For a second language, extend OUT again.

    If MODEL has a gate or an expert for each language, OUT has one for the new language, too.

    Then run mtmoe prepare corpora RAW DATA --recipe folder --vocabulary-of OUT, and train with
    --init-model OUT, or with --finetune-from-model OUT if it has experts.
    """
    output_file("OUT", output, overwrite, MODEL=model, **{"--text": text})
    for path in held_text:
        output_file("OUT", output, overwrite, **{"--held-text": path})
    lines = _lines("--text", text)
    held = {path: _lines("--held-text", path) for path in held_text}
    expect_checkpoints(model)
    from fairseq_mtmoe.checkpoints import rebuild
    from fairseq_mtmoe.checkpoints.assemble import load_shared_part
    from fairseq_mtmoe.checkpoints.new_rows import expect_rows, with_rows
    from fairseq_mtmoe.checkpoints.rewriting import save_with_experts
    from fairseq_mtmoe.checkpoints.sharding import count_experts
    from fairseq_mtmoe.translation.data.new_language import expect_other_language, extend

    state = load_shared_part(model, mapped=True)
    rebuild.check(model, state, ["model"])
    old = vocabulary_in(model, state)
    settings = state["task_state"]
    expect_other_language(settings, lang, like)
    expect_rows(model, state["model"], old.source.size, old.target.size)
    like = _with_codes_of_their_own(old, settings, state["model"], like)
    state, expert_of = _with_task(model, state, lang, like)
    new = extend(old, settings, lang, like, lines, new_pieces)
    for side in (new.vocabulary.source, new.vocabulary.target):
        _ = side.processor  # raises if the new model cannot be loaded
    result = with_rows(state, _means(old.source, new.source), _means(old.target, new.target))
    history = state.get("optimizer_history") or []
    result["task_state"] = _task_state(settings, lang, old, new, history)
    # No update has seen the new rows; rows of the next language are added to them.
    result["optimizer_history"] = [{**entry, "num_updates": 0} for entry in history[-1:]]
    result["extra_state"] = _at_the_beginning(result["extra_state"])
    save_with_experts(result, model, output)
    click.echo(
        f"{output}: {lang} and {new.pieces:,} new symbols for it; {new.vocabulary.source.size:,} "
        "in all"
    )
    if expert_of:
        click.echo(f"The expert for {lang} is a copy of the one for {expert_of} (--like).")
    if experts := count_experts(result):
        click.echo(f"To train it: --finetune-from-model {output} --num-experts {experts}")
    _say_cuts(old, new.vocabulary, (text, lines), held)


def _task_state(
    settings: Mapping[str, Any],
    lang: str,
    old: "Vocabulary",
    new: "Extended",
    history: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the task's state with the new language and its vocabulary.

    It also has the number of symbols that no update has seen.
    """
    from fairseq_mtmoe.translation.data.vocabulary import ENDS, NEW_SYMBOLS, VOCABULARY

    unlearned = [len(new.source), len(new.target)]
    if not any(entry.get("num_updates") for entry in history):
        before = settings.get(NEW_SYMBOLS, [0, 0])
        unlearned = list(map(sum, zip(unlearned, before, strict=True)))
    return {
        **settings,
        "langs": [*settings["langs"], lang],
        VOCABULARY: new.vocabulary.to_state(),
        NEW_SYMBOLS: unlearned,
        ENDS: {**dict.fromkeys(settings["langs"], old.ends), **settings.get(ENDS, {})},
    }


def _at_the_beginning(extra_state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new run's extra state, without position, hours and schedule."""
    from fairseq_mtmoe.checkpoints.key_maps import AVERAGES, GATE_RATE

    kept = {name: extra_state[name] for name in (*AVERAGES, GATE_RATE) if name in extra_state}
    return {**kept, "train_iterator": {"epoch": 1, "iterations_in_epoch": 0}}


def _with_codes_of_their_own(
    old: "Vocabulary", settings: Mapping[str, Any], weights: Mapping[str, Any], like: Sequence[str]
) -> Sequence[str]:
    """Return `like`, by default all languages with trained codes.

    Raises `UserError` if a code in `like` is untrained. In Marian's models the code of a language
    that is only a source is a row of zeros.
    """
    from fairseq_mtmoe.checkpoints.key_maps import EMBEDDINGS
    from fairseq_mtmoe.translation.data.new_language import codes_of

    indices = [side.dictionary().indices for side in (old.source, old.target)]

    def has_learned(lang: str) -> bool:
        codes = codes_of(lang, settings)
        for name, index in zip(EMBEDDINGS, indices, strict=True):
            for code in codes:
                if code in index and weights[name][index[code]].any():
                    return True
        return False

    for lang in like:
        if not has_learned(lang):
            raise_invalid("--like", "languages with trained codes in the model", lang)
    return like or [lang for lang in settings["langs"] if has_learned(lang)]


def _with_task(
    model: Path, state: dict[str, Any], lang: str, like: Sequence[str]
) -> tuple[dict[str, Any], str]:
    """Return the checkpoint with one more task if its tasks are languages.

    With fixed gates its expert is a copy of that of the first language of `like` that has one,
    which is also returned.

    Raises `UserError` if its tasks are pairs or groups, or no language of `like` has an expert.
    """
    from fairseq_mtmoe.checkpoints.new_task import (
        MEAN,
        NewTask,
        Shapes,
        fixed_experts,
        options_with_task,
        with_task,
    )
    from fairseq_mtmoe.checkpoints.rebuild import model_options, without_memory

    options = model_options(state) or {}
    if not options.get("task_names"):
        return state, ""
    tasks = options["task_names"].split(",")
    larger = options_with_task(options, tasks, lang)
    before = Shapes.of(without_memory(model, state, options))
    after = Shapes.of(without_memory(model, state, larger))
    experts = fixed_experts(before.shapes)
    expert_of = ""
    is_task = set(tasks) <= set(state["task_state"]["langs"])
    if before.shapes != after.shapes or experts:
        if not is_task:
            raise UserError(
                f"`{model}` must have languages as tasks, so that one can be added, but has "
                f"{tasks[0]} and others."
            )
        with_tasks = [relative for relative in like if relative in tasks]
        if experts and not with_tasks:
            rule = (
                f"one or several of {', '.join(tasks)}, since the new language gets a copy of the "
                "first one's expert"
            )
            raise_invalid("--like", rule, ",".join(like))
        begins_as = ",".join(with_tasks) or MEAN
        if experts:
            expert_of = begins_as = with_tasks[0]
        state = with_task(state, NewTask(tasks, begins_as, {}, seed=1), before, after)
    cfg = {**state["cfg"], "model": larger if is_task else options}
    return {**state, "cfg": cfg}, expert_of


def _means(side: "Side", rows: "Rows") -> list[tuple[int, ...]]:
    """Return for each new row the indices of the old rows that it averages.

    Letters share the tuple of all pieces.
    """
    index = side.dictionary().indices
    numbers = {}
    for parts in set(rows.values()):
        numbers[parts] = tuple(index[part] for part in parts)
    return [numbers[parts] for parts in rows.values()]


def _say_cuts(
    old: "Vocabulary",
    new: "Vocabulary",
    text: tuple[Path, list[str]],
    held: Mapping[Path, list[str]],
) -> None:
    """Print pieces per word of the new text before and after.

    Also print the share of held lines that are split differently.
    """
    from fairseq_mtmoe.translation.data.new_pieces import changed, figures

    path, lines = text
    for kind in ("source",) if old.source == old.target else ("source", "target"):
        before = getattr(old, kind)
        after = getattr(new, kind)
        role = "" if old.source == old.target else f" as a {kind}"
        long, lacking = figures(before.processor, before.symbols, lines)
        short, left = figures(after.processor, after.symbols, lines)
        click.echo(
            f"{path}{role}: {long:.2f} pieces a word before, {short:.2f} now; {lacking:.2%} <unk>, "
            f"{left:.2%} now"
        )
        for other, others in held.items():
            count = changed(before.processor, after.processor, others)
            share = f"{count:,} of {len(others):,} lines ({count / len(others):.2%})"
            click.echo(f"{other}{role}: {share} are split differently")


def _lines(option: str, path: Path) -> list[str]:
    """Return a file's lines with text, as `mtmoe prepare` writes them.

    Raises `UserError` if there are none.
    """
    lines = list(filter(None, map(normalise, text_lines(path))))
    if not lines:
        raise UserError(f"`{option}` must have text, but `{path}` has no line with text.")
    return lines
