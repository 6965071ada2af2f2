"""`mtmoe import-hf`: a pretrained encoder from a folder of Hugging Face's."""

from __future__ import annotations

from pathlib import Path

import click

from fairseq_mtmoe.io.files import output_file


@click.command("import-hf")
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.argument("encoder", metavar="ENCODER", type=click.Path(path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace ENCODER if it exists.")
def command(folder: Path, encoder: Path, overwrite: bool) -> None:
    """Write the BERT, MiniLM or RoBERTa in FOLDER to the file ENCODER.

    FOLDER is a local one with config.json, the weights (model.safetensors or pytorch_model.bin, in parts or not) and
    the tokenizer's files, all of which ENCODER then holds. Heads are left out. Nothing in FOLDER is executed.
    """
    from fairseq_mtmoe.backbones.bert.hugging_face import read_folder

    output_file("ENCODER", encoder, overwrite)
    imported = read_folder(folder)
    imported.encoder.save(encoder)
    config, left_out = imported.encoder.config, len(imported.left_out)
    millions = sum(value.numel() for value in imported.encoder.state.values()) / 1e6
    click.echo(
        f"{encoder}: {config.model_type}, {config.num_hidden_layers} blocks of {config.hidden_size}, "
        f"{millions:.1f} million parameters, {'with' if config.has_pooler else 'without'} a pooler; "
        f"{left_out} other tensor{'s' * (left_out != 1)} left out"
    )
