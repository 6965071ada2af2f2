"""`mtmoe extend`: a translator with one more language."""

from collections.abc import Sequence
from pathlib import Path

import click

from fairseq_mtmoe.cli._shared import PATH, names, quiet_fairseq
from fairseq_mtmoe.cli._vocabulary import vocabulary_in
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import output_file, text_lines


@click.command("extend")
@click.argument("model", metavar="MODEL", type=PATH)
@click.argument("output", metavar="OUT", type=PATH)
@click.option("--language", "lang", required=True, metavar="CODE",
              help="Code of the new language, written as the model writes codes: luo_Latn for NLLB.")  # fmt: skip
@click.option("--text", type=PATH, required=True, metavar="FILE", help="Text of it: one sentence a line, UTF-8.")
@click.option("--like", callback=names, metavar="CODE[,CODE…]",
              help="Languages of the model whose codes' mean the new code begins as.  [default: all]")  # fmt: skip
@click.option("--new-pieces", type=click.IntRange(0), default=2000, show_default=True,
              help="Pieces beside letters, at most: those that occur ten times in FILE.")  # fmt: skip
@click.option("--held-text", type=PATH, multiple=True, metavar="FILE",
              help="Text of the model's languages: which share of its lines is cut otherwise; repeatable.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@quiet_fairseq()
def command(
    model: Path, output: Path, lang: str, text: Path, like: Sequence[str], new_pieces: int, held_text: Sequence[Path],
    overwrite: bool,
) -> None:  # fmt: skip
    """Write to OUT the translator MODEL with another language: its code, its letters, and frequent pieces of its words.

    MODEL is a file of `mtmoe import-hf`, or a checkpoint of a run on data of `mtmoe prepare`. All new symbols follow
    those that there are, so that old ones keep their numbers, and text without new pieces is cut as before. A new
    piece's embedding is the mean of those pieces that it was cut into, a letter's that of all. The optimizer's state is
    left out. For a second language, extend OUT again.

    Then: mtmoe prepare corpora RAW DATA --recipe folder --vocabulary-of OUT, and train with --init-model OUT.
    """
    from fairseq_mtmoe import register

    output_file("OUT", output, overwrite, MODEL=model, TEXT=text)
    lines, held = _lines("--text", text), {path: _lines("--held-text", path) for path in held_text}
    register()
    from fairseq_mtmoe.checkpoints import rebuild
    from fairseq_mtmoe.checkpoints.assemble import load_shared_part
    from fairseq_mtmoe.checkpoints.new_rows import expect_rows, with_rows
    from fairseq_mtmoe.checkpoints.rebuild import model_options
    from fairseq_mtmoe.checkpoints.rewriting import save_with_experts
    from fairseq_mtmoe.data.translation.new_language import expect_other_language, extend
    from fairseq_mtmoe.data.translation.new_pieces import changed, figures
    from fairseq_mtmoe.data.translation.vocabulary import NEW_SYMBOLS, NUM_SPECIAL, VOCABULARY

    state = load_shared_part(model, mapped=True)
    rebuild.check(model, state, ["model"])
    old = vocabulary_in(model, state)
    settings = state["task_state"]
    if tasks := (model_options(state) or {}).get("task_names"):
        raise UserError(
            f"`{model}` must have the same weights for all languages, but tells apart {tasks[:80]}: extend the dense "
            "model that it began with."
        )
    expect_other_language(settings, lang, like)
    sizes = [NUM_SPECIAL + len(side.symbols) for side in (old.source, old.target)]
    expect_rows(model, state["model"], *sizes)
    new = extend(old, settings, lang, like, lines, new_pieces)
    means = []
    for side, rows in ((old.source, new.source), (old.target, new.target)):
        index = {symbol: number for number, symbol in enumerate(side.symbols, NUM_SPECIAL)}
        numbers = {parts: tuple(index[part] for part in parts) for parts in set(rows.values())}
        means.append([numbers[parts] for parts in rows.values()])
    result = with_rows(state, *means)
    added, before = [len(new.source), len(new.target)], settings.get(NEW_SYMBOLS, [0, 0])
    is_trained = any(entry.get("num_updates") for entry in state.get("optimizer_history") or ())
    unlearned = added if is_trained else [sum(both) for both in zip(added, before, strict=True)]
    result["task_state"] = {
        **settings, "langs": [*settings["langs"], lang], VOCABULARY: new.vocabulary.to_state(),
        NEW_SYMBOLS: unlearned,
    }  # fmt: skip
    save_with_experts(result, model, output)
    click.echo(f"{output}: {lang} and {new.pieces:,} new symbols for it; {sizes[0] + added[0]:,} in all")
    is_joined = old.source == old.target
    for kind in ("source",) if is_joined else ("source", "target"):
        one, other = getattr(old, kind), getattr(new.vocabulary, kind)
        of = "" if is_joined else f" as a {kind}"
        (long, lacking), (short, left) = (figures(side.processor, side.symbols, lines) for side in (one, other))
        click.echo(f"{text}{of}: {long:.2f} pieces a word before, {short:.2f} now; {lacking:.2%} <unk>, {left:.2%} now")
        for path, others in held.items():
            count = changed(one.processor, other.processor, others)
            click.echo(f"{path}{of}: {count:,} of {len(others):,} lines ({count / len(others):.2%}) are cut otherwise")


def _lines(option: str, path: Path) -> list[str]:
    """The lines of a text that have words (UserError: none)."""
    lines = [line for line in text_lines(path) if line.strip()]
    if not lines:
        raise_invalid(option, "a file with text", str(path))
    return lines
