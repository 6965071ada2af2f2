"""Explain in one sentence why a checkpoint does not fit a model.

Both have their options, and languages are in the task's state. Code that loads a model inside
`explained` gets a `UserError` that names the differing options.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fairseq_mtmoe.checkpoints import key_maps as keys
from fairseq_mtmoe.checkpoints.rebuild import plain
from fairseq_mtmoe.core.errors import UserError, find_user_error, flag, shortened
from fairseq_mtmoe.core.protocols import training_model

Shapes = Mapping[str, tuple[int, ...]]
State = Mapping[str, Any]
Options = Mapping[str, Any]

_SIDES = ("encoder", "decoder")
_HEADS = tuple(f"{side}_attention_heads" for side in _SIDES)  # in no shape
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
_LANGUAGE_TOKEN = re.compile(r"__(.+)__|\[(.+)\]")
_SWITCH = {"True": "on", "False": "off"}
_NO_CONDITIONS = ("", "none")


@dataclass(frozen=True)
class Origin:
    """A loaded checkpoint: its name, the options of its model, and its languages."""

    name: str
    model: Options
    langs: tuple[str, ...]


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
            or _about_vocabulary(model, ours, theirs, origin)
        )
        if not sentence and not is_share:
            sentence = _about_tasks(model, ours, theirs, origin)
            sentence = sentence or _about_names(ours, theirs, origin)
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
    names = [
        name for name in names if name in theirs and name in ours and theirs[name] != ours[name]
    ]
    # Conditional parts may be new.
    names = [name for name in names if name != "conditional" or theirs[name] not in _NO_CONDITIONS]
    if not names:
        return None
    rules = []
    for name in names:
        wanted, here = (_SWITCH.get(str(side[name]), side[name]) for side in (theirs, ours))
        rules.append(f"`{flag(name)}` must be {wanted}, but is {here}")
    hint = ""
    if any("be off" in rule for rule in rules):
        hint = "; `--arch` base_moe, base_dense or transformer leaves it off"
    return f"{', and '.join(rules)}, to load {origin.name}{hint}."


def _about_vocabulary(model: Any, ours: Shapes, theirs: Shapes, origin: Origin) -> str | None:
    for side in _SIDES:
        here, there = (
            shapes.get(f"{side}.embed_tokens.weight", (0,))[0] for shapes in (ours, theirs)
        )
        if here == there:
            continue
        langs = _languages(getattr(getattr(model, side), "dictionary", None))
        if langs and origin.langs and here - len(langs) == there - len(origin.langs):
            return _about_languages(langs, origin)
        return (
            f"DATA must have the dictionary that {origin.name} was trained with, of {there} "
            f"entries{_with_languages(origin.langs)}, but has one of "
            f"{here}{_with_languages(langs)} instead."
        )
    return None


def _about_languages(langs: Sequence[str], origin: Origin) -> str:
    missing = [lang for lang in origin.langs if lang not in langs]
    others = [lang for lang in langs if lang not in origin.langs]
    parts = []
    if missing:
        parts.append(f"without {shortened(missing)}")
    if others:
        parts.append(f"with {shortened(others)}")
    hint = "" if missing else ", and `mtmoe add-task` adds one to a checkpoint"
    return (
        f"`--langs` must be the languages of {origin.name}, but is {' and '.join(parts)}; by "
        f"default they are those of `--lang-pairs`{hint}."
    )


def _with_languages(langs: Sequence[str]) -> str:
    return f" (with tokens for {len(langs)} languages)" if langs else ""


def _languages(dictionary: Any) -> list[str]:
    """Return the languages whose tokens end a dictionary, as in fairseq's tasks."""
    languages: list[str] = []
    for symbol in reversed(getattr(dictionary, "symbols", ())):
        match = _LANGUAGE_TOKEN.fullmatch(symbol)
        if match:
            languages.insert(0, match[1] or match[2])
        elif symbol != "<mask>":
            break
    return languages


def _about_tasks(model: Any, ours: Shapes, theirs: Shapes, origin: Origin) -> str | None:
    tables = [name for name in ours if name.endswith((keys.GATE, keys.TASK_EMBEDDINGS))]
    here = training_model(model).task_names
    there = origin.model.get("task_names")
    if all(ours[name] == theirs.get(name) for name in tables) or not here or not there:
        return None
    return (
        f"The model's tasks must be {there} to load {origin.name}, but are {','.join(here)} "
        "instead: `--task-ids`, `--langs` and `--lang-pairs` set them."
    )


def _about_names(ours: Shapes, theirs: Shapes, origin: Origin) -> str | None:
    """Return a sentence on the first different parameter that no option explains."""
    name = next((name for name in (*ours, *theirs) if ours.get(name) != theirs.get(name)), None)
    if name is None:
        return None
    here = ours.get(name)
    there = theirs.get(name)
    if here is None:
        return f"{origin.name} must be of this model, but has another parameter, `{name}`."
    if there is None:
        return f"{origin.name} must be of this model, but lacks `{name}`."
    return (
        f"{origin.name} must be of this model, whose `{name}` has the shape {here}, but it has "
        f"{there}."
    )


def _unseen_options(options: Any, origin: Origin) -> tuple[str, ...]:
    """Return options that no shape shows: heads, and embeddings that become tied."""
    ties = [name for name in _SHARING if plain(options).get(name)]
    ties = ties[:1]  # the first implies the second
    return _HEADS if origin.model.get("share_all_embeddings") else (*_HEADS, *ties)


def origin_of(path: str, state: State) -> Origin:
    """Return the origin of a loaded checkpoint, for sentences."""
    cfg = state.get("cfg") or {}
    task = plain(cfg.get("task"))
    langs = (state.get("task_state") or {}).get("langs") or task.get("langs")
    pairs = task.get("lang_pairs")
    if not langs:  # fairseq's task infers them; our tasks store them
        langs = ()
        if isinstance(pairs, list):
            langs = sorted({lang for pair in pairs for lang in pair.split("-")})
    names = tuple(langs.split(",") if isinstance(langs, str) else langs)
    return Origin(f"`{path}`", plain(cfg.get("model")), names)
