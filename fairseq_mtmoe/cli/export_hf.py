"""`mtmoe export-hf`: an encoder as a folder that Hugging Face's `transformers` loads."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("export-hf")
@click.argument("encoder", metavar="ENCODER", type=click.Path(path_type=Path))
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
def command(encoder: Path, folder: Path) -> None:
    """Write ENCODER, a file of `mtmoe import-hf`, to the new FOLDER.

    FOLDER gets config.json, model.safetensors and the tokenizer's files; `transformers` loads it with
    AutoModel.from_pretrained.
    """
    from fairseq_mtmoe.backbones.bert import encoder_file, hugging_face

    pretrained = encoder_file.load(encoder)
    hugging_face.write_folder(pretrained, folder)
    click.echo(f"{folder}: {pretrained.config.model_type} for transformers, {len(pretrained.state)} tensors")
