"""`mtmoe import-hf`: a pretrained encoder or T5 from a folder of Hugging Face's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fairseq_mtmoe.cli._quiet import quiet_fairseq
from fairseq_mtmoe.io.files import output_file, read_json


@click.command("import-hf")
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@quiet_fairseq()
def command(folder: Path, output: Path, overwrite: bool) -> None:
    """Write the BERT, MiniLM, RoBERTa or T5 in FOLDER to the file OUT.

    FOLDER is a local one with config.json, the weights (model.safetensors or pytorch_model.bin, in parts or not) and
    the tokenizer's files (of a T5 spiece.model, or tokenizer.json), all of which OUT then holds. Heads are left out.
    Nothing in FOLDER is executed.
    """
    from fairseq_mtmoe.backbones.bert import pretrained as of_bert
    from fairseq_mtmoe.backbones.hugging_face import CONFIG
    from fairseq_mtmoe.backbones.t5 import pretrained as of_t5

    output_file("OUT", output, overwrite)
    if of_t5.is_of_t5(read_json(folder / CONFIG, "the `config.json` of a model's folder")):
        t5 = of_t5.read_folder(folder)
        t5.model.save(output)
        sizes = t5.model.config
        blocks = f"t5, {sizes.num_layers} and {sizes.num_decoder_layers} blocks of {sizes.d_model}"
        click.echo(f"{output}: {blocks}, {_counted(t5.model.state, '', len(t5.left_out))}")
        return
    imported = of_bert.read_folder(folder)
    imported.model.save(output)
    config = imported.model.config
    blocks = f"{config.model_type}, {config.num_hidden_layers} blocks of {config.hidden_size}"
    pooler = f"{'with' if config.has_pooler else 'without'} a pooler"
    click.echo(f"{output}: {blocks}, {_counted(imported.model.state, pooler, len(imported.left_out))}")


def _counted(state: Mapping[str, Any], more: str, left_out: int) -> str:
    millions = sum(value.numel() for value in state.values()) / 1e6
    parts = [f"{millions:.1f} million parameters", *([more] if more else [])]
    return f"{', '.join(parts)}; {left_out} other tensor{'s' * (left_out != 1)} left out"
