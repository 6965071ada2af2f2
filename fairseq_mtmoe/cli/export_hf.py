"""`mtmoe export-hf`: a model as a folder that `transformers` loads."""

import os
from pathlib import Path

import click

from fairseq_mtmoe.cli._shared import PATH, expect_checkpoints, quiet_fairseq
from fairseq_mtmoe.core.errors import raise_invalid


@click.command("export-hf")
@click.argument("model", metavar="MODEL", type=PATH)
@click.argument("folder", metavar="FOLDER", type=PATH)
@quiet_fairseq()
def command(model: Path, folder: Path) -> None:
    """Write MODEL to the new FOLDER, for `transformers`.

    MODEL is a checkpoint of a dense translator, encoder or T5, or a file of `mtmoe import-hf`.
    FOLDER gets config.json, model.safetensors and the tokenizer's files. `transformers` computes
    the same from it: load it with AutoTokenizer and AutoModel; an encoder of one task with
    AutoModelForSequenceClassification; a translator or T5 with AutoModelForSeq2SeqLM. A
    translator's vocabulary must come from `mtmoe import-hf` or `mtmoe prepare`;
    ct2-transformers-converter takes its FOLDER.

    The heads of several tasks, and heads for rankings, words and spans, are left out. Models with
    experts, adapters or conditional parts cannot be exported: `transformers` has no class for them.
    """
    if os.path.lexists(folder):
        raise_invalid("FOLDER", "a folder that does not exist yet", str(folder))
    expect_checkpoints(model)
    from fairseq_mtmoe.checkpoints import file_io
    from fairseq_mtmoe.checkpoints.hugging_face import IMPORT_ANEW
    from fairseq_mtmoe.cli._exported import exported

    translation = exported(model, file_io.load(str(model), mapped=True, remedy=IMPORT_ANEW))
    click.echo(f"{folder}: {translation.write(folder)}")
