"""`mtmoe import-hf`: a pretrained model from a Hugging Face folder."""

from pathlib import Path
from typing import Any

import click

from fairseq_mtmoe.cli._shared import PATH, overwrite_option, quiet_fairseq
from fairseq_mtmoe.core.errors import raise_invalid
from fairseq_mtmoe.core.files import output_file


@click.command("import-hf")
@click.argument("folder", metavar="FOLDER", type=PATH)
@click.argument("output", metavar="OUT", type=PATH)
@overwrite_option
@quiet_fairseq()
def command(folder: Path, output: Path, overwrite: bool) -> None:
    """Convert the model in FOLDER to the file OUT.

    The model is an NLLB-200, M2M-100, mBART-50, OPUS-MT, BERT, MiniLM, RoBERTa or T5. FOLDER is
    local and has config.json, the weights (model.safetensors or pytorch_model.bin, sharded or not)
    and the tokenizer's files (SentencePiece models, or tokenizer.json; language codes). OUT holds
    all of these. Heads are left out. No code in FOLDER is executed. A translator's OUT is a
    checkpoint for --init-model, --finetune-from-model, fairseq-generate and mtmoe evaluate.

    FOLDER may also hold fairseq's own mBART-50 or M2M-100: model.pt, dict.txt and one SentencePiece
    model (*.model). It needs langs.txt, the languages in order, if the model's options do not list
    them.
    """
    from fairseq_mtmoe import register
    from fairseq_mtmoe.checkpoints.hugging_face import CONFIG, check_is_whole
    from fairseq_mtmoe.translation.pretrained.fairseq_files import MODEL, read_fairseq_folder

    output_file("OUT", output, overwrite)
    if output.exists() and output.resolve().parent == folder.resolve():
        raise_invalid("OUT", "a file outside FOLDER, or a new one", str(output))
    check_is_whole(folder)
    if not (folder / CONFIG).exists() and (folder / MODEL).exists():
        register()  # to read the options in fairseq's files
        imported = _translator(read_fairseq_folder(folder), output)
    else:
        imported = _imported(folder, output)
    # Tied parameters count once.
    sizes = {value.data_ptr(): value.numel() for value in imported.model.state.values()}
    millions = sum(sizes.values()) / 1e6
    rest = f"{len(imported.left_out)} other tensor{'s' * (len(imported.left_out) != 1)} left out"
    click.echo(
        f"{output}: {imported.model.config.model_type}, {millions:.1f} million parameters; {rest}"
    )


def _imported(folder: Path, output: Path) -> Any:
    """Write OUT; return its model with the names of tensors left out."""
    from fairseq_mtmoe.checkpoints.hugging_face import config_values
    from fairseq_mtmoe.nlu.bert import pretrained as bert_pretrained
    from fairseq_mtmoe.nlu.bert.config import BERT, ROBERTA
    from fairseq_mtmoe.nlu.t5 import pretrained as t5_pretrained
    from fairseq_mtmoe.nlu.t5.config import T5
    from fairseq_mtmoe.translation.pretrained.families import FAMILIES
    from fairseq_mtmoe.translation.pretrained.reading import read_folder

    kind = config_values(folder, (BERT, ROBERTA, T5, *FAMILIES))["model_type"]
    if kind in FAMILIES:
        return _translator(read_folder(folder), output)
    imported = (t5_pretrained if kind == T5 else bert_pretrained).read_folder(folder)
    imported.model.save(output)
    return imported


def _translator(imported: Any, output: Path) -> Any:
    from fairseq.dataclass.configs import FairseqConfig
    from omegaconf import OmegaConf

    from fairseq_mtmoe.translation.task.config import TranslationHeatedConfig

    whole = OmegaConf.structured(FairseqConfig)  # the task's options interpolate its values
    whole.task = OmegaConf.structured(TranslationHeatedConfig)
    task: Any = OmegaConf.to_container(whole.task, resolve=True)
    imported.model.save(output, {**task, "_name": "translation_heated"})
    return imported
