"""Conversion of checkpoints to Hugging Face's classes, for `mtmoe export-hf`."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fairseq_mtmoe.checkpoints.head_labels import labels_of
from fairseq_mtmoe.checkpoints.hugging_face import Additions, check_tensors
from fairseq_mtmoe.checkpoints.loading import expect_finite
from fairseq_mtmoe.checkpoints.rebuild import model_options
from fairseq_mtmoe.checkpoints.sharding import has_experts
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import new_folder
from fairseq_mtmoe.nlu.bert import pretrained as bert_pretrained
from fairseq_mtmoe.nlu.bert.config import EncoderConfig
from fairseq_mtmoe.nlu.bert.heads import heads_from_text
from fairseq_mtmoe.nlu.bert.pretrained import PretrainedEncoder
from fairseq_mtmoe.nlu.data.tokenizer_files import load_tokenizer
from fairseq_mtmoe.nlu.t5 import pretrained as t5_pretrained
from fairseq_mtmoe.nlu.t5.config import T5, T5Config
from fairseq_mtmoe.nlu.t5.model import bare_state
from fairseq_mtmoe.nlu.t5.pretrained import PretrainedT5
from fairseq_mtmoe.translation.decode import stored
from fairseq_mtmoe.translation.decode.text_batches import TextCodec
from fairseq_mtmoe.translation.pretrained.layout import language_name
from fairseq_mtmoe.translation.pretrained.one_task import (
    chosen_tasks,
    dense_parameters,
    has_fixed_gates,
    own_parameters,
)
from fairseq_mtmoe.translation.pretrained.writing import ExportedTranslator, exported_translator

HEADS = "heads."
ENCODER = "encoder."
DECODER = "decoder.embed_tokens.weight"
# Special tokens in `transformers`, with BERT's and RoBERTa's spelling.
TOKENS = {
    "pad_token": ("[PAD]", "<pad>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "unk_token": ("[UNK]", "<unk>"),
    "mask_token": ("[MASK]", "<mask>"),
}


class Exported(NamedTuple):
    """A model for a Hugging Face folder, with additions such as a head."""

    model: PretrainedEncoder | PretrainedT5 | ExportedTranslator
    head: Additions | None = None
    said: str = ""  # end of a sentence on the head and on parts left out

    def write(self, folder: Path) -> str:
        """Write the folder atomically, and return a text on its content.

        Raises `UserError` if the folder exists.
        """
        if isinstance(self.model, ExportedTranslator):
            self.model.write(folder)
        elif isinstance(self.model, PretrainedT5):
            t5_pretrained.write_folder(self.model, folder)
        else:
            bert_pretrained.write_folder(self.model, folder, self.head)
        return f"{self.model.config.model_type} for transformers{self.said}"

    def conversion(self, folder: Path) -> str:
        """Return the command that converts the folder for CTranslate2; empty if it cannot."""
        if self.said or not isinstance(self.model, ExportedTranslator):
            return ""
        return _conversion(folder, shlex.quote(str(folder)), "SERVED")


@dataclass(frozen=True)
class ExportedByTask:
    """The dense translators that one with fixed gates is, by their folders' names."""

    translators: Mapping[str, ExportedTranslator]
    own: set[str]  # names of the parameters that differ

    def write(self, folder: Path) -> str:
        """Write a folder for each task into a new one; return a text on its content."""
        like: Path | None = None
        with new_folder(folder) as partial:
            for name, translator in self.translators.items():
                translator.write(partial / name, self.own, like)
                like = partial / name
        sizes = {}
        for file in folder.glob("*/*"):
            status = file.stat()
            sizes[status.st_ino] = status.st_size
        (kind, *_) = {each.config.model_type for each in self.translators.values()}
        said = next(iter(self.translators.values())).said
        return (
            f"{', '.join(self.translators)}, each {kind} for transformers; "
            f"{sum(sizes.values()) / 1e6:.1f} MB in all{said}"
        )

    def conversion(self, folder: Path) -> str:
        """Return the command that converts all folders; see `Exported.conversion`."""
        first = next(iter(self.translators))
        if self.translators[first].said:
            return ""
        conversion = _conversion(folder / first, '"$model"', '"SERVED/$(basename "$model")"')
        return f"for model in {shlex.quote(str(folder))}/*; do {conversion}; done"


def _conversion(folder: Path, model: str, output: str) -> str:
    """Return the command that converts a model; `folder` has files like its own."""
    command = (
        f"ct2-transformers-converter --model {model} --output_dir {output} --quantization int8"
    )
    if (folder / "source.spm").exists():
        command += " --copy_files source.spm target.spm tokenizer_config.json"
    return command


def exported_by_task(
    path: Path, content: Mapping[str, Any], sources: Sequence[str], targets: Sequence[str]
) -> ExportedByTask | None:
    """Return the chosen languages' dense translators, or None for other models.

    Raises `UserError`: languages are chosen for a model without layers of languages, or none for
    one with them, or a folder could not have a language's name.
    """
    options = model_options(content) or {}
    by_task = has_experts(dict(content)) and has_fixed_gates(options)
    if not by_task:
        if has_experts(dict(content)):
            _expect_expressible(path, content, options)
        if sources or targets:
            raise UserError(
                f"`--{'to' if targets else 'from'}` needs a model with a feed-forward layer per "
                f"language (`--expert-gates fixed`), but `{path}` has no experts: export it "
                "without the option."
            )
        return None
    _expect_expressible(path, {"model": {DECODER: None}}, options)
    state = stored.read(str(path))
    codec = TextCodec([state], [str(path)])
    chosen = chosen_tasks(codec, codec.task.args.lang_pairs, sources, targets)
    parameters = state["model"]
    expect_finite(str(path), parameters.values())
    translators = {}
    for name, task in chosen.items():
        language_name(path, name.replace("-", ""))
        settings = {**(content.get("task_state") or {}), "pairs": task.pairs}
        own = dense_parameters(parameters, task.index)
        dense = {**content, "model": own, "task_state": settings}
        translators[name] = exported_translator(path, dense, options, task.first_word)
    return ExportedByTask(translators, own_parameters(parameters))


def exported(path: Path, content: Mapping[str, Any]) -> Exported:
    """Convert a file of `mtmoe import-hf` or a checkpoint.

    Raises `UserError` if no Hugging Face class computes its model.
    """
    if "cfg" not in content and "args" not in content:
        family = t5_pretrained if T5 in content else bert_pretrained
        return Exported(family.load(path, content))
    if not isinstance(content.get("model"), dict):
        raise UserError(f"`{path}` is not the checkpoint of a model: it has no parameters.")
    expect_finite(str(path), content["model"].values())
    options = model_options(content) or {}
    _expect_expressible(path, content, options)
    try:
        if not (options.get("t5") or options.get("encoder")):
            translator = exported_translator(path, content, options)
            return Exported(translator, said=translator.said)
        state = {name: value.float() for name, value in content["model"].items()}
        return (_t5 if options.get("t5") else _encoder)(path, content, options, state)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"`{path}` is damaged: it lacks settings of its model.") from error


def _expect_expressible(path: Path, content: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise `UserError` with advice if Hugging Face's classes lack parts of the model."""
    advice = "train `--arch mt_dense` instead, or use `mtmoe predict`"
    if options.get("t5"):
        advice = "use `mtmoe predict`"
    if not (options.get("t5") or options.get("encoder")):
        advice = (
            "use `mtmoe translate`, or train `--arch base_dense`, also on its translations, or "
            "`--expert-gates fixed`: docs/guides/deploy.md"
        )
        if DECODER not in content["model"]:
            raise UserError(
                f"`{path}` must be a translator, an encoder or a T5; `transformers` has no class "
                f"for {options.get('_name')!r}."
            )
    parts = {
        "experts that tokens are routed to": has_experts(dict(content)),
        "conditional parts": options.get("conditional", "none") != "none",
        "adapters": bool(options.get("pemt")),
    }
    for what, is_there in parts.items():
        if is_there:
            raise UserError(
                f"`{path}` must be a dense model, but has {what}, which `transformers` lacks; "
                f"{advice}."
            )


def _t5(
    path: Path, content: Mapping[str, Any], options: Mapping[str, Any], state: dict[str, Tensor]
) -> Exported:
    config = replace(T5Config(**json.loads(options["t5"])), dropout_rate=options["dropout"])
    state = bare_state(state, config)
    check_tensors(path, t5_pretrained.wanted_tensors(config), state)
    pieces = content["task_state"]["sentencepiece"].numpy().tobytes()
    return Exported(PretrainedT5(config, pieces, state))


def _encoder(
    path: Path, content: Mapping[str, Any], options: Mapping[str, Any], state: dict[str, Tensor]
) -> Exported:
    config = replace(
        EncoderConfig(**json.loads(options["encoder"])),
        hidden_dropout_prob=options["dropout"],
        attention_probs_dropout_prob=options["attention_dropout"],
        has_pooler=False,
    )
    encoder_state = {
        name.removeprefix(ENCODER): value
        for name, value in state.items()
        if not name.startswith(HEADS)
    }
    check_tensors(path, bert_pretrained.wanted_tensors(config), encoder_state)
    head, said = _head(options, config, state)
    files = _tokenizer_files(content["task_state"]["tokenizer"], config)
    return Exported(PretrainedEncoder(config, files, encoder_state), head, said)


def _head(
    options: Mapping[str, Any], config: EncoderConfig, state: Mapping[str, Tensor]
) -> tuple[Additions | None, str]:
    """Return the head of the only task, if it reads just [CLS], and a text on heads."""
    sizes = heads_from_text(options["heads"])
    ((task, size), *others) = sizes.items()
    if others or not size.has_bias or size.num_words or size.per_token or size.per_word:
        named = f"the head of {task}"
        if others:
            named = f"the heads of {', '.join(sizes)} (a class has one)"
        return None, f"; left out: {named} (read last_hidden_state: the pooler is not trained)"
    weight = state[f"{HEADS}{task}.weight"]
    bias = state[f"{HEADS}{task}.bias"]
    weight_shape = (size.num_outputs, config.hidden_size)
    if tuple(weight.shape) != weight_shape or tuple(bias.shape) != (size.num_outputs,):
        raise ValueError("of other sizes")
    labels: tuple[str, ...] = ()
    if size.num_outputs > 1:
        # Checkpoints up to 0.2.0 have no labels, and get numbers.
        numbers = map(str, range(size.num_outputs))
        labels = tuple(labels_of("the checkpoint", options).get(task) or numbers)
    return bert_pretrained.classifier(config, weight, bias, labels), f", with the head of {task}"


def _tokenizer_files(serialized: str, config: EncoderConfig) -> dict[str, str]:
    """Return the tokenizer's files for AutoTokenizer.

    BERT's own class could normalize text differently.
    """
    tokenizer = load_tokenizer(serialized)
    inputs = ["input_ids", "attention_mask"]
    if config.type_vocab_size > 1:
        inputs.insert(1, "token_type_ids")
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_positions,
        "model_input_names": inputs,
    }
    for kind, names in TOKENS.items():
        present = [name for name in names if tokenizer.token_to_id(name) is not None]
        if present:
            settings[kind] = present[0]
    return {
        "tokenizer.json": serialized,
        "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
    }
