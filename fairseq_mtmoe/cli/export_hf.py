"""`mtmoe export-hf`: a translator, encoder or T5, trained or imported, as a folder that `transformers` loads."""

import os
from pathlib import Path

import click

from fairseq_mtmoe.cli._shared import PATH, quiet_fairseq
from fairseq_mtmoe.errors import raise_invalid


@click.command("export-hf")
@click.argument("model", metavar="MODEL", type=PATH)
@click.argument("folder", metavar="FOLDER", type=PATH)
@quiet_fairseq()
def command(model: Path, folder: Path) -> None:
    """Write MODEL, a checkpoint of a dense translator, encoder or T5 or a file of `mtmoe import-hf`, to the new FOLDER.

    FOLDER gets config.json, model.safetensors and the tokenizer's files; `transformers` loads it with AutoTokenizer and
    AutoModel, an encoder of one task with AutoModelForSequenceClassification, a translator or T5 with
    AutoModelForSeq2SeqLM, and computes the same. A translator must have learned with the vocabulary of a file of
    `mtmoe import-hf` or of `mtmoe prepare`; ct2-transformers-converter takes its FOLDER.

    Heads of several tasks, and of rankings, words and spans, are left out. Models with experts or conditional parts
    have no class there. What `mtmoe merge` made of an encoder or T5 has its prompt and adapters in a class of its own,
    which comes along and needs trust_remote_code=True; a translator with adapters cannot be written.
    """
    from fairseq_mtmoe import register

    if os.path.lexists(folder):
        raise_invalid("FOLDER", "one that does not exist yet", str(folder))
    register()
    from fairseq_mtmoe.backbones.hugging_face import IMPORT_ANEW
    from fairseq_mtmoe.checkpoints import file_io
    from fairseq_mtmoe.cli._exported import exported

    found = exported(model, file_io.load(str(model), mapped=True, remedy=IMPORT_ANEW))
    click.echo(f"{folder}: {found.write(folder)}")
