"""A trained model in the terms of Hugging Face's classes, from a checkpoint of any of our runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fairseq_mtmoe.backbones.bert import encoder_file
from fairseq_mtmoe.backbones.bert import hugging_face as of_bert
from fairseq_mtmoe.backbones.bert.config import EncoderConfig
from fairseq_mtmoe.backbones.bert.encoder_file import PretrainedEncoder
from fairseq_mtmoe.backbones.bert.heads import HeadSize, heads_from_text
from fairseq_mtmoe.backbones.bert.hugging_face import Classifier
from fairseq_mtmoe.backbones.hugging_face import check_tensors
from fairseq_mtmoe.backbones.t5 import hugging_face as of_t5
from fairseq_mtmoe.backbones.t5 import model_file
from fairseq_mtmoe.backbones.t5.config import T5Config
from fairseq_mtmoe.backbones.t5.model_file import PretrainedT5
from fairseq_mtmoe.checkpoints.described import model_options
from fairseq_mtmoe.checkpoints.states import has_experts
from fairseq_mtmoe.data.nlu.table import load_tables
from fairseq_mtmoe.data.nlu.tokenizer_files import load_tokenizer
from fairseq_mtmoe.errors import UserError

HEADS, ENCODER = "heads.", "encoder."
# What tokenizers call the tokens that `transformers` wants to know by their tasks: BERT's and RoBERTa's.
TOKENS = {
    "pad_token": ("[PAD]", "<pad>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "unk_token": ("[UNK]", "<unk>"),
    "mask_token": ("[MASK]", "<mask>"),
}


@dataclass(frozen=True)
class Exported:
    """An encoder or T5 as a folder of Hugging Face's, and what of a checkpoint is no part of it.

    Attributes:
        model: the encoder or T5.
        classifier: the head of an encoder's one task; None without.
        left_out: what there is no place for, as the end of a sentence; empty where there is nothing.
    """

    model: PretrainedEncoder | PretrainedT5
    classifier: Classifier | None = None
    left_out: str = ""

    def write(self, folder: Path) -> None:
        """Write the folder, completely or not at all."""
        if isinstance(self.model, PretrainedT5):
            of_t5.write_folder(self.model, folder)
        else:
            of_bert.write_folder(self.model, folder, self.classifier)

    @property
    def said(self) -> str:
        """What the folder holds."""
        kind = "t5" if isinstance(self.model, PretrainedT5) else self.model.config.model_type
        head = "" if self.classifier is None else f", a head of {len(self.classifier.bias)}"
        return f"{kind} for transformers, {len(self.model.state)} tensors{head}{self.left_out}"


def exported(path: Path, content: Mapping[str, Any]) -> Exported:
    """What a file holds, of `mtmoe import-hf` or a checkpoint.

    Raises:
        UserError: it is another, or none of Hugging Face's classes computes what its model does.
    """
    if "cfg" in content or "args" in content:
        return _of_checkpoint(path, content)
    of_kind = model_file if model_file.KIND in content else encoder_file
    return Exported(of_kind.read(path, content))


def _of_checkpoint(path: Path, content: Mapping[str, Any]) -> Exported:
    options = model_options(content) or {}
    _expect_expressible(path, content, options)
    state = {name: value.float() for name, value in content["model"].items()}
    try:
        if options.get("t5"):
            return _t5(path, content, options, state)
        return _encoder(path, content, options, state)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"`{path}` must hold what its model was built with, but does not: it is damaged.") from error


def _expect_expressible(path: Path, content: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise the `UserError` that says what of a model Hugging Face's classes lack, and what to do instead."""
    name = options.get("_name")
    if not (options.get("t5") or options.get("encoder")):
        raise UserError(
            f"`{path}` must be of an encoder or a T5, but is of {name!r}, which has no class in `transformers`; "
            "fairseq-generate and `mtmoe evaluate` translate with it."
        )
    if has_experts(dict(content)):
        raise UserError(
            f"`{path}` must be a dense model, but its feed-forward layers are experts, which BertModel has not; train "
            "`--arch mt_dense` with the same options, or predict with `mtmoe predict`."
        )
    if options.get("conditional", "none") != "none":
        raise UserError(
            f"`{path}` must compute the same for all tasks, but adapts attention or norms to each, which BertModel "
            "cannot; train `--arch mt_dense` with the same options, or predict with `mtmoe predict`."
        )


def _t5(path: Path, content: Mapping[str, Any], options: Mapping[str, Any], state: dict[str, Tensor]) -> Exported:
    config = replace(T5Config(**json.loads(options["t5"])), dropout_rate=options["dropout"])
    state = model_file.bare_state(state, config)
    check_tensors(path, model_file.wanted_tensors(config), state)
    return Exported(PretrainedT5(config, content["task_state"]["sentencepiece"].numpy().tobytes(), state))


def _encoder(path: Path, content: Mapping[str, Any], options: Mapping[str, Any], state: dict[str, Tensor]) -> Exported:
    config = replace(
        EncoderConfig(**json.loads(options["encoder"])),
        hidden_dropout_prob=options["dropout"],
        attention_probs_dropout_prob=options["attention_dropout"],
        has_pooler=False,
    )
    own = {name.removeprefix(ENCODER): value for name, value in state.items() if not name.startswith(HEADS)}
    check_tensors(path, encoder_file.wanted_tensors(config), own)
    model = PretrainedEncoder(config, _tokenizer_files(content["task_state"]["tokenizer"], config), own)
    sizes = heads_from_text(options["heads"])
    ((task, size), *others) = sizes.items()
    if not others and _is_classifier(size):
        head = (state[f"{HEADS}{task}.weight"], state[f"{HEADS}{task}.bias"])
        if [tuple(value.shape) for value in head] != [(size.num_outputs, config.hidden_size), (size.num_outputs,)]:
            raise ValueError("of other sizes")
        return Exported(model, Classifier(*head, _labels(content, task, size)))
    several = f"the heads of {', '.join(sizes)}, of which a class has one" if others else f"the head of {task}"
    return Exported(model, None, f"; left out: {several} (read last_hidden_state: the pooler is not trained)")


def _is_classifier(size: HeadSize) -> bool:
    """Whether a head reads [CLS] alone, and gives one number for each label, or a value."""
    return size.has_bias and not (size.num_words or size.per_token or size.per_word)


def _labels(content: Mapping[str, Any], task: str, size: HeadSize) -> tuple[str, ...]:
    """The labels in the table's row of a task, in the order of its head; numbers where the row is not there any more."""
    if size.num_outputs == 1:
        return ()
    given = str(content["cfg"]["task"].get("task_table") or "")
    tables = [Path(name) for name in given.split(",") if name and Path(name).is_file()]
    row = load_tables(tables).get(task)
    known = [] if row is None else [str(label) for label in row.labels]
    if len(set(known)) != size.num_outputs:
        known = [str(number) for number in range(size.num_outputs)]
    return tuple(known)


def _tokenizer_files(serialized: str, config: EncoderConfig) -> dict[str, str]:
    """The files by which AutoTokenizer reads text as the model did; its own class would normalize as it likes."""
    tokenizer = load_tokenizer(serialized)
    found = {
        kind: next((name for name in names if tokenizer.token_to_id(name) is not None), None)
        for kind, names in TOKENS.items()
    }
    inputs = ["input_ids", *(["token_type_ids"] if config.type_vocab_size > 1 else []), "attention_mask"]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_positions,
        "model_input_names": inputs,
        **{kind: name for kind, name in found.items() if name is not None},
    }
    return {"tokenizer.json": serialized, "tokenizer_config.json": json.dumps(settings, indent=2) + "\n"}
