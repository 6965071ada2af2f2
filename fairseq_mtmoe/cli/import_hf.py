"""`mtmoe import-hf`: a pretrained translator, encoder or T5 from a Hugging Face folder."""

from pathlib import Path
from typing import Any

import click

from fairseq_mtmoe.cli._shared import PATH, quiet_fairseq
from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.io.files import output_file, read_json


@click.command("import-hf")
@click.argument("folder", metavar="FOLDER", type=PATH)
@click.argument("output", metavar="OUT", type=PATH)
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@quiet_fairseq()
def command(folder: Path, output: Path, overwrite: bool) -> None:
    """Convert the NLLB-200, M2M-100, mBART-50, OPUS-MT, BERT, MiniLM, RoBERTa or T5 in FOLDER to the file OUT.

    FOLDER is local and has config.json, the weights (model.safetensors or pytorch_model.bin, sharded or not) and the
    tokenizer's files (SentencePiece models, or tokenizer.json; language codes). OUT holds all of these. Heads are left
    out. No code in FOLDER is executed. A translator's OUT is a checkpoint for --init-model, --finetune-from-model,
    fairseq-generate and mtmoe evaluate.

    FOLDER may also hold fairseq's own mBART-50 or M2M-100: model.pt, dict.txt and one SentencePiece model (*.model). It
    needs langs.txt, the languages in order, if the model's options do not list them.
    """
    from fairseq_mtmoe import register
    from fairseq_mtmoe.backbones.hugging_face import CONFIG, check_is_whole
    from fairseq_mtmoe.backbones.translation.pretrained.fairseq_files import MODEL, read_fairseq_folder

    output_file("OUT", output, overwrite)
    if output.exists() and output.resolve().parent == folder.resolve():
        raise_invalid("OUT", "a file outside FOLDER, or a new one", str(output))
    check_is_whole(folder)
    if not (folder / CONFIG).exists() and (folder / MODEL).exists():
        register()  # to read the options in fairseq's files
        state, blocks, more, left_out = _translator(read_fairseq_folder(folder), output)
    else:
        values = read_json(folder / CONFIG, "the `config.json` of a model's folder")
        state, blocks, more, left_out = _imported(folder, values, output)
    millions, others = sum({value.data_ptr(): value.numel() for value in state.values()}.values()) / 1e6, len(left_out)
    rest = f"{others} other tensor{'s' * (others != 1)} left out"
    click.echo(f"{output}: {blocks}, {millions:.1f} million parameters{more}; {rest}")


def _imported(folder: Path, values: Any, output: Path) -> tuple[dict[str, Any], str, str, tuple[str, ...]]:
    """Write OUT; return its tensors, a text on its blocks, one on other parts, and the names left out."""
    from fairseq_mtmoe.backbones.bert import pretrained as of_bert
    from fairseq_mtmoe.backbones.bert.config import BERT, ROBERTA
    from fairseq_mtmoe.backbones.hugging_face import CONFIG, in_file
    from fairseq_mtmoe.backbones.t5 import pretrained as of_t5
    from fairseq_mtmoe.backbones.t5.config import T5
    from fairseq_mtmoe.backbones.translation.pretrained.families import FAMILIES, is_of_translator
    from fairseq_mtmoe.backbones.translation.pretrained.reading import read_folder

    known = (BERT, ROBERTA, T5, *FAMILIES)
    if not isinstance(values, dict):
        raise_invalid(str(folder / CONFIG), "a dictionary", values)
    if values.get("model_type") not in known:
        with in_file(folder / CONFIG):
            raise_invalid("model_type", f"one of {', '.join(known)}", values.get("model_type"))
    if is_of_translator(values):
        return _translator(read_folder(folder), output)
    if of_t5.is_of_t5(values):
        t5 = of_t5.read_folder(folder)
        t5.model.save(output)
        sizes = t5.model.config
        blocks = f"t5, {sizes.num_layers} and {sizes.num_decoder_layers} blocks of {sizes.d_model}"
        return t5.model.state, blocks, "", t5.left_out
    encoder = of_bert.read_folder(folder)
    encoder.model.save(output)
    config = encoder.model.config
    blocks = f"{config.model_type}, {config.num_hidden_layers} blocks of {config.hidden_size}"
    return encoder.model.state, blocks, f", {'with' if config.has_pooler else 'without'} a pooler", encoder.left_out


def _translator(found: Any, output: Path) -> tuple[dict[str, Any], str, str, tuple[str, ...]]:
    from fairseq.dataclass.configs import FairseqConfig
    from omegaconf import OmegaConf

    from fairseq_mtmoe.tasks.translation.config import TranslationHeatedConfig

    model = found.model
    whole = OmegaConf.structured(FairseqConfig)  # the task's options interpolate its values
    whole.task = OmegaConf.structured(TranslationHeatedConfig)
    task: Any = OmegaConf.to_container(whole.task, resolve=True)
    model.save(output, {**task, "_name": "translation_heated"})
    config, langs = model.config, model.layout.langs
    blocks = f"{config.model_type}, {config.encoder_layers} and {config.decoder_layers} blocks of {config.d_model}"
    named = ", ".join(langs) if len(langs) <= 4 else f"{len(langs)} languages such as {langs[0]}"
    return model.state, blocks, f", {named}", found.left_out
