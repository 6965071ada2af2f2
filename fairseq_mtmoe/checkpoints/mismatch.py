"""Explain in one sentence why a checkpoint does not fit a model.

Both have their options. Code that loads a model inside `explained` gets a `UserError` that names
the differing options.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fairseq_mtmoe.checkpoints import key_maps as keys
from fairseq_mtmoe.checkpoints.rebuild import plain
from fairseq_mtmoe.core.errors import UserError, find_user_error, flag
from fairseq_mtmoe.core.protocols import training_model

Shapes = Mapping[str, tuple[int, ...]]
State = Mapping[str, Any]
Options = Mapping[str, Any]

_HEADS = ("encoder_attention_heads", "decoder_attention_heads")  # in no shape
_SHARING = ("share_all_embeddings", "share_decoder_input_output_embed")
# Options that decide shapes, in the order of sentences
_SIZES = (
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_layers",
    "decoder_embed_dim",
    "decoder_ffn_embed_dim",
    "decoder_layers",
    "encoder_normalize_before",
    "encoder_learned_pos",
    "decoder_normalize_before",
    "decoder_learned_pos",
    "layernorm_embedding",
    "expert_interval",
    "expert_combine",
    "expert_gates",
    "conditional",
)
# Further ones, and what the checkpoint must have for them to decide shapes
_SIZES_OF_PARTS = {
    "max_source_positions": ("encoder_learned_pos", "True"),
    "max_target_positions": ("decoder_learned_pos", "True"),
    "conditional_positions": ("conditional", "attention"),
    "conditional_form": ("conditional", "bottleneck"),
}
_BEGIN_ANEW = (
    "another instead; to train all weights, start from the weights that its run started from"
)
# A mark in a checkpoint's names, the architecture that it needs, and the word for one without it.
_ARCHITECTURES = (
    (keys.MOE, "experts, such as base_moe or mt_tag", "a dense one instead"),
    (keys.MIXTURE, "adapters, such as pemt_t5", _BEGIN_ANEW),
)
_SWITCH = {"True": "on", "False": "off"}
_NO_CONDITIONS = ("", "none")


@dataclass(frozen=True)
class Origin:
    """A loaded checkpoint's name, and the options of its model."""

    name: str
    model: Options


class Mismatch(UserError):
    """A checkpoint does not fit a model; `explained` says why."""


@contextmanager
def explained(model: Any, options: Any, read: Sequence[tuple[str, State]]) -> Iterator[None]:
    """Explain errors while a model loads the last of the checkpoints that were `read`.

    options: of the model. Raises `UserError` with the differences.
    """
    try:
        yield
    except Exception as error:
        user_error = find_user_error(error)
        if not read or (user_error is not None and type(user_error) is not Mismatch):
            raise
        raise refusal_of(model, options, *read[-1]) or error from error
    if read:
        origin = origin_of(*read[-1])
        sentence = _about_options(_unseen_options(options, origin), options, origin)
        if sentence is not None:
            raise UserError(sentence)


def refusal_of(
    model: Any, options: Any, path: str, state: State, is_share: bool = False
) -> UserError | None:
    """Return how another model's state differs from a model; None if it fits.

    is_share: whether the model has only some of the experts.
    """
    origin = origin_of(path, state)
    sentence = _about_options(_unseen_options(options, origin), options, origin)
    if state.get("model") is not None:  # otherwise the trainer freed the weights
        ours = _shapes_of(model.state_dict())
        theirs = _shapes_of(state["model"])
        names = (*_sizes(origin), *_unseen_options(options, origin))
        sentence = (
            _about_architecture(ours, theirs, origin)
            or _about_options(names, options, origin)
            or _about_vocabulary(ours, theirs, origin)
        )
        if not sentence and not is_share:
            sentence = _about_names(model, ours, theirs, origin)
    return UserError(sentence) if sentence else None


def _shapes_of(state: State) -> Shapes:
    """Return the shapes by name."""
    return {name: tuple(value.shape) for name, value in state.items()}


def _sizes(origin: Origin) -> list[str]:
    """Return the names of options that decide the shapes of a checkpoint."""
    names = list(_SIZES)
    for name, (option, needed) in _SIZES_OF_PARTS.items():
        if needed in str(origin.model.get(option)):
            names.append(name)
    return names


def _about_architecture(ours: Shapes, theirs: Shapes, origin: Origin) -> str | None:
    for mark, needed, here in _ARCHITECTURES:
        if any(mark in name for name in theirs) and not any(mark in name for name in ours):
            return f"`--arch` must be one with {needed}, to load {origin.name}, but is {here}."
    return None


def _about_options(names: Iterable[str], options: Any, origin: Origin) -> str | None:
    """Return one sentence with all of these options that differ."""
    theirs = origin.model
    ours = plain(options)
    rules = []
    for name in names:
        wanted = theirs.get(name, ours.get(name))
        here = ours.get(name, wanted)
        is_new = name == "conditional" and wanted in _NO_CONDITIONS  # a checkpoint need not have it
        if wanted != here and not is_new:
            rule = f"must be {_SWITCH.get(str(wanted), wanted)}, but is"
            rules.append(f"`{flag(name)}` {rule} {_SWITCH.get(str(here), here)}")
    if not rules:
        return None
    sentence = f"{', and '.join(rules)}, to load {origin.name}"
    if "must be off" in sentence:
        sentence += "; `--arch` base_moe, base_dense or transformer leaves it off"
    return f"{sentence}."


def _about_vocabulary(ours: Shapes, theirs: Shapes, origin: Origin) -> str | None:
    for name in keys.EMBEDDINGS:
        here = ours.get(name, (0,))[0]
        there = theirs.get(name, (0,))[0]
        if here != there:
            return (
                f"DATA and `--langs` must give the {there} symbols of {origin.name}, but give "
                f"{here} instead; `mtmoe add-task` adds a language to a checkpoint."
            )
    return None


def _about_names(model: Any, ours: Shapes, theirs: Shapes, origin: Origin) -> str | None:
    """Return a sentence on different parameters that no option explains."""
    names = [name for name in (*ours, *theirs) if ours.get(name) != theirs.get(name)]
    if not names:
        return None
    tasks = training_model(model).task_names
    saved_tasks = origin.model.get("task_names")
    tables = (name for name in names if name.endswith((keys.GATE, keys.TASK_EMBEDDINGS)))
    if tasks and saved_tasks and any(tables):
        return (
            f"The model's tasks must be {saved_tasks} to load {origin.name}, but are "
            f"{','.join(tasks)} instead: `--task-ids`, `--langs` and `--lang-pairs` set them."
        )
    name = names[0]
    if name not in ours:
        return f"{origin.name} must be of this model, but has another parameter, `{name}`."
    if name not in theirs:
        return f"{origin.name} must be of this model, but lacks `{name}`."
    return (
        f"{origin.name} must be of this model, whose `{name}` has the shape {ours[name]}, but it "
        f"has {theirs[name]}."
    )


def _unseen_options(options: Any, origin: Origin) -> tuple[str, ...]:
    """Return options that no shape shows: heads, and embeddings that become tied."""
    ties = [name for name in _SHARING if plain(options).get(name)]
    ties = ties[:1]  # the first implies the second
    return _HEADS if origin.model.get("share_all_embeddings") else (*_HEADS, *ties)


def origin_of(path: str, state: State) -> Origin:
    """Return the origin of a loaded checkpoint, for sentences."""
    return Origin(f"`{path}`", plain((state.get("cfg") or {}).get("model")))
