"""The model that a checkpoint describes: of known kinds alone, which do no more than they say.

A file names its model, and fairseq's models do as they like with a file's options: some evaluate them, some open what
they name. A file may therefore choose the models of this package and stock translation transformers alone, whose code
was read for that; a user can trust others by name. Nor may a file describe a model larger than the one that it holds.
What users give on the command line is theirs, and not looked at. Commands that need no data make the model of options
and stand-ins for what a task gives.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_mtmoe.checkpoints.file_io import readable
from fairseq_mtmoe.checkpoints.sharding import State, has_experts
from fairseq_mtmoe.checkpoints.validation import every_option
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.moe.parallel.placement import whole_models
from fairseq_mtmoe.protocols import BecomesSparse

TRUST = "MTMOE_TRUST"  # the environment variable with names that a user adds
OURS = "fairseq_mtmoe."
KNOWN = {
    "model": {"transformer", "transformer_align"},
    "task": {"translation", "translation_multi_simple_epoch"},
    "criterion": {
        "adaptive_loss", "cross_entropy", "label_smoothed_cross_entropy", "label_smoothed_cross_entropy_with_alignment",
    },
    "bpe": {"byte_bpe", "bytes", "characters", "fastbpe", "sentencepiece", "subword_nmt"},
    "tokenizer": {"moses", "nltk", "space"},
}  # fmt: skip
EVERYTHING = tuple(KNOWN)
# fairseq takes the first of these that it finds, which is another one in different places.
_NAMED_BY = {"model": ("_name", "arch"), **{kind: ("_name", kind) for kind in EVERYTHING if kind != "model"}}
_LAYERS = ("encoder_layers", "decoder_layers", "base_layers", "base_sublayers", "layers")
_KEYS_OF_A_LAYER = 10  # at least, of fairseq's 16 and of 12 in its older checkpoints
_FEW_EXPERTS = 1024
_GROWTH = 4  # positions may be more than weights in a small model
_SMALL = 1 << 24  # numbers: 64 MiB


@dataclass(frozen=True)
class Source:
    """A file that was checked, whose options a model is built of.

    Attributes:
        path: of the file.
        model: its weights, which a model may not be larger than; None where that is not compared.
    """

    path: str | Path
    model: Mapping[str, Tensor] | None

    def build(self, build: Callable[..., Any], options: Any, *args: Any) -> Any:
        """`build(options, …)`, which is no larger a model than the file's weights.

        Raises:
            UserError: see `check_size`.
        """
        self.check(options, lambda copied: build(copied, *args))
        return build(options, *args)

    def check(self, options: Any, build: Callable[[Any], nn.Module]) -> None:
        """`check_size` for the file's weights; `build` gets a copy of the options."""
        if self.model is not None:
            check_size(self.path, self.model, options, lambda: build(copy.deepcopy(options)))


UNCHECKED = Source("", None)  # of a state that the caller made


def check(path: str | Path, state: dict[str, Any], kinds: Sequence[str], holds_all: bool = True) -> Source:
    """Look at what a checkpoint's options choose, before anything is made of them.

    Args:
        path: the file.
        state: what it holds, in whose options paths are left out.
        kinds: what the file may choose, such as `model` and `task`.
        holds_all: whether it has all weights of its model.

    Raises:
        UserError: they choose what is neither known to be safe nor trusted by the user.
    """
    known = {kind: check_name(path, state, kind) for kind in kinds}
    _forget_paths([state.get("cfg"), state.get("args")])
    return Source(path, (state.get("model") or {}) if known.get("model") and holds_all else None)


def check_name(path: str | Path, state: dict[str, Any], kind: str) -> bool:
    """Whether a checkpoint chooses a known model (or another kind of thing), and not one that the user trusts.

    Raises:
        UserError: it chooses one that is neither.
    """
    names = _names(state.get("args"), ("arch",) if kind == "model" else (kind,))
    names += _names((_container(state.get("cfg")) or {}).get(kind), _NAMED_BY[kind])
    if kind == "model" and not names:
        raise UserError(f"`{path}` must name the model that it is of, but does not.")
    trusted = {name.strip() for name in os.environ.get(TRUST, "").split(",")}
    unknown = [name for name in names if not isinstance(name, str) or not _is_known(kind, name)]
    for name in unknown:
        if not isinstance(name, str) or name not in trusted:
            raise UserError(
                f"`{path}` must be of a {kind} that is known to execute nothing of a file, but is of {name!r}; where "
                f"you trust whoever made the file, set the environment variable `{TRUST}={name}`."
            )
    return not unknown


def _container(options: Any) -> Any:
    """Options in plain containers, if they are a configuration by now."""
    from omegaconf import DictConfig, OmegaConf

    if is_dataclass(options):
        return vars(options)
    return OmegaConf.to_container(options) if isinstance(options, DictConfig) else options


def _names(options: Any, keys: tuple[str, ...]) -> list[Any]:
    if options is None or isinstance(options, str):
        return [] if options is None else [options]
    values = vars(options) if isinstance(options, Namespace) else options
    if not isinstance(values, dict):
        return [values]
    return [values[key] for key in keys if values.get(key) is not None]


def _is_known(kind: str, name: str) -> bool:
    """Whether this is ours, or stock and known; a model also by the name of one of its architectures."""
    return _base_name(kind, name) in KNOWN[kind] or _registered(kind, name).startswith(OURS)


def _base_name(kind: str, name: str) -> str:
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    base: str = ARCH_MODEL_NAME_REGISTRY.get(name, name) if kind == "model" else name
    return base


def _registered(kind: str, name: str) -> str:
    """The module of what fairseq has under a name."""
    from fairseq.models import MODEL_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_REGISTRY

    registries = {"model": MODEL_REGISTRY, "task": TASK_REGISTRY}
    found = (registries.get(kind) or REGISTRIES[kind]["registry"]).get(_base_name(kind, name))
    return getattr(found, "__module__", "")


def _forget_paths(options: Any) -> None:
    """Leave out which pretrained embeddings a model began with: those in the file take their place."""
    if isinstance(options, Namespace):
        options = vars(options)
    for key, value in options.items() if isinstance(options, dict) else enumerate(options):
        if isinstance(key, str) and key.endswith("embed_path"):
            options[key] = None
        elif isinstance(value, dict | list | Namespace):
            _forget_paths(value)


def check_size(path: str | Path, model: Mapping[str, Tensor], options: Any, build: Callable[[], nn.Module]) -> None:
    """Refuse options of a model that the weights in the file are too few for.

    Args:
        path: the file.
        model: its weights.
        options: of the model, by name.
        build: makes the model; it is called where tensors have no memory, once its layers are not too many.

    Raises:
        UserError: the model would be larger than the file's.
    """
    counts = [(name, int(value)) for name, value in every_option(_container(options)) if _is_number(value)]
    layers = sum(value for name, value in counts if name in _LAYERS)
    experts = max((value for name, value in counts if name == "num_experts"), default=0)
    rows = max((len(value) for value in model.values() if value.dim()), default=0)
    if layers * _KEYS_OF_A_LAYER > len(model) or experts > max(rows, _FEW_EXPERTS):  # each takes time to make
        raise UserError(
            f"`{path}` must hold the weights of the model that it describes, but that one has {layers} layers with "
            f"{experts} experts, and the file {len(model)} weights of at most {rows} rows."
        )
    with readable(str(path)), torch.device("meta"), torch.random.fork_rng(devices=()):
        twin = build()
    held = sum(value.numel() for value in model.values())
    needed = sum(value.numel() for module in twin.modules() for value in _own_tensors(module))
    if needed > _GROWTH * held + _SMALL:
        raise UserError(
            f"`{path}` must hold the weights of the model that it describes, but that one has {needed} numbers, and "
            f"the file {held}."
        )


def _is_number(value: Any) -> bool:
    """Whether this is a whole number, be it as text, which a configuration turns into one."""
    return isinstance(value, int) or (isinstance(value, str) and value.isdecimal())


def _own_tensors(module: nn.Module) -> Iterator[Tensor]:
    """A module's parameters, buffers, and tensors that are neither, such as the sines of positions."""
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)
    yield from (value for value in vars(module).values() if isinstance(value, Tensor))


def model_options(checkpoint: Mapping[str, Any]) -> dict[str, Any] | None:
    """The options of a checkpoint's model by name; None where it has none of fairseq 0.12 or later."""
    options = (checkpoint.get("cfg") or {}).get("model")
    if isinstance(options, Namespace):
        options = vars(options)
    return options if isinstance(options, dict) else None


def configuration(kind: type, options: Mapping[str, Any]) -> Any:
    """A model's dataclass with those of the options that it knows."""
    names = {field.name for field in dataclasses.fields(kind)} - {"_name"}
    return kind(**{name: value for name, value in options.items() if name in names})


def stand_in_task(weights: Mapping[str, Tensor], more_symbols: int = 0) -> SimpleNamespace:
    """What `build_model` wants of a task: dictionaries of the right sizes, one object where they are shared.

    An encoder with heads has its sizes among its options.

    Args:
        weights: of the model.
        more_symbols: by which both dictionaries are larger.
    """
    if "decoder.embed_tokens.weight" not in weights:
        return SimpleNamespace(pretrained=None)
    from fairseq.data import Dictionary

    def sized(count: int) -> Dictionary:
        dictionary = Dictionary()
        for index in range(len(dictionary), count):
            dictionary.add_symbol(f"symbol{index}")
        return dictionary

    source, target = (len(weights[f"{side}.embed_tokens.weight"]) + more_symbols for side in ("encoder", "decoder"))
    source_dictionary = sized(source)
    return SimpleNamespace(
        source_dictionary=source_dictionary,
        target_dictionary=source_dictionary if source == target else sized(target),
    )


def without_memory(source: Source, state: State, options: Mapping[str, Any], more_symbols: int = 0) -> nn.Module:
    """The model of a checkpoint with all its experts, whose tensors have names and shapes alone.

    Args:
        source: the checkpoint, see `check`.
        state: of a checkpoint of this package, whole or a shared part.
        options: of its model, or others in their place.
        more_symbols: by which its vocabularies are larger.

    Raises:
        UserError: the options are wrong, or describe a larger model than the checkpoint holds.
    """
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

    name = ARCH_MODEL_NAME_REGISTRY.get(options["_name"], options["_name"])
    cfg = configuration(MODEL_DATACLASS_REGISTRY[name], options)
    with torch.device("meta"), whole_models():
        model: nn.Module = source.build(
            MODEL_REGISTRY[name].build_model, cfg, stand_in_task(state["model"], more_symbols)
        )
        if has_experts(state) and isinstance(model, BecomesSparse) and model.is_dense:
            model.sparsify()
    return model
