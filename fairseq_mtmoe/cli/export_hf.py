"""`mtmoe export-hf`: a model as a folder that `transformers` loads."""

import os
from collections.abc import Sequence
from pathlib import Path

import click

from fairseq_mtmoe.cli._shared import PATH, expect_checkpoints, list_option, quiet_fairseq
from fairseq_mtmoe.core.errors import UserError


@click.command("export-hf")
@click.argument("model", metavar="MODEL", type=PATH)
@click.argument("folder", metavar="EXPORTED", type=PATH)
@list_option(
    "--to",
    "targets",
    metavar="LANG[,LANG…]|all",
    help="Target languages of a model with a feed-forward layer per target language; EXPORTED gets "
    "a folder for each.",
)
@list_option(
    "--from",
    "sources",
    metavar="LANG[,LANG…]|all",
    help="Source languages of such a model, if it was trained with `--task-ids source`; with "
    "`--task-ids pair` both options choose pairs.",
)
@quiet_fairseq()
def command(model: Path, folder: Path, targets: Sequence[str], sources: Sequence[str]) -> None:
    """Write MODEL to the new folder EXPORTED, for `transformers` and CTranslate2.

    MODEL is a checkpoint of a translator, encoder or T5, or a file of `mtmoe import-hf`. EXPORTED
    gets config.json, model.safetensors and the tokenizer's files. `transformers` computes the same
    from it: load it with AutoTokenizer and AutoModel; an encoder of one task with
    AutoModelForSequenceClassification; a translator or T5 with AutoModelForSeq2SeqLM. A
    translator's vocabulary must come from `mtmoe import-hf` or `mtmoe prepare`;
    ct2-transformers-converter takes its folder.

    A translator with a feed-forward layer per language (`--expert-gates fixed`) is a dense model
    for each language: choose languages with --to, and EXPORTED/LANG computes the same
    translations. Their common weights are stored once, in a file with several names. The last line
    of the output is the command that converts the folders for CTranslate2.

    The heads of several tasks, and heads for rankings, words and spans, are left out. Models that
    route tokens (other gates), adapters and conditional parts have no class in `transformers`.
    """
    if os.path.lexists(folder):
        raise UserError(f"`EXPORTED` must be a new folder, but {folder} exists already.")
    expect_checkpoints(model)
    from fairseq_mtmoe.checkpoints import file_io
    from fairseq_mtmoe.cli._exported import exported, exported_by_task

    content = file_io.load(str(model), mapped=True)
    translators = exported_by_task(model, content, sources, targets)
    written = translators or exported(model, content)
    click.echo(f"{folder}: {written.write(folder)}")
    if command_line := written.conversion(folder):
        click.echo(f"To serve it by CTranslate2:\n{command_line}")
