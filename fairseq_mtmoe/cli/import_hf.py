"""`mtmoe import-hf`: a pretrained encoder or T5 from a folder of Hugging Face's."""

from pathlib import Path
from typing import Any

import click

from fairseq_mtmoe.cli._shared import PATH, quiet_fairseq
from fairseq_mtmoe.io.files import output_file, read_json


@click.command("import-hf")
@click.argument("folder", metavar="FOLDER", type=PATH)
@click.argument("output", metavar="OUT", type=PATH)
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
    imported: Any
    if of_t5.is_of_t5(read_json(folder / CONFIG, "the `config.json` of a model's folder")):
        imported, more = of_t5.read_folder(folder), ""
        config = imported.model.config
        blocks = f"t5, {config.num_layers} and {config.num_decoder_layers} blocks of {config.d_model}"
    else:
        imported = of_bert.read_folder(folder)
        config = imported.model.config
        blocks = f"{config.model_type}, {config.num_hidden_layers} blocks of {config.hidden_size}"
        more = f", {'with' if config.has_pooler else 'without'} a pooler"
    imported.model.save(output)
    millions, others = sum(value.numel() for value in imported.model.state.values()) / 1e6, len(imported.left_out)
    left_out = f"{others} other tensor{'s' * (others != 1)} left out"
    click.echo(f"{output}: {blocks}, {millions:.1f} million parameters{more}; {left_out}")
