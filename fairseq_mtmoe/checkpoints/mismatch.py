"""Explain in one sentence why a checkpoint does not fit a model.

Sizes are in the parameters' names and shapes, languages in the task's state. Code that loads a model inside `explained`
gets a `UserError` that names the differing options.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fairseq_mtmoe.checkpoints import key_maps as keys
from fairseq_mtmoe.checkpoints.rebuild import plain
from fairseq_mtmoe.errors import MAX_SHOWN, UserError, find_user_error, flag, shortened
from fairseq_mtmoe.moe.layer import COMBINES
from fairseq_mtmoe.protocols import training_model

Shapes = Mapping[str, tuple[int, ...]]
State = Mapping[str, Any]

_SIDES = {"encoder": "source", "decoder": "target"}
_SHARING = ("share_all_embeddings", "share_decoder_input_output_embed")
_BEGIN_ANEW = "another instead; to train all weights, start from the weights that its run started from"
# A mark in a checkpoint's names, the architecture that it needs, and the word for one without it.
_ARCHITECTURES = (
    (keys.MOE, "experts, such as base_moe or mt_tag", "a dense one instead"),
    (keys.MIXTURE, "adapters, such as pemt_t5", _BEGIN_ANEW),
)
_BLOCK = re.compile(r"(?:encoder|decoder)\.layers\.(\d+)\.")
_LANGUAGE_TOKEN = re.compile(r"__(.+)__|\[(.+)\]")
_SWITCH = {"True": "on", "False": "off"}
_NO_CONDITIONS = "none"
_NO_POSITIONS = 2  # fairseq's learned positions begin after the padding's index


@dataclass(frozen=True)
class Origin:
    """A loaded checkpoint: its name, the options of its model, its languages and its task."""

    name: str = "the checkpoint"
    model: Mapping[str, Any] = field(default_factory=dict)
    langs: tuple[str, ...] = ()
    task: str = ""


NAMELESS = Origin()


class Mismatch(UserError):
    """A checkpoint without a known name does not fit the model."""


@contextmanager
def explained(model: Any, read: Sequence[tuple[Origin, State]]) -> Iterator[None]:
    """Explain errors while a model loads the last of the checkpoints that were `read`.

    Raises `UserError` with the differences.
    """
    try:
        yield
        sentence = _about_options(*_unseen_options(model, read[-1][0]), read[-1][0]) if read else None
        if sentence is not None:
            raise UserError(sentence)
    except Exception as error:
        found = find_user_error(error)
        if not read or (found is not None and type(found) is not Mismatch):
            raise
        origin, state = read[-1]
        if state.get("model") is not None:
            raise refusal(model, state["model"], origin) or error from error
        sentence = _about_options(*_unseen_options(model, origin), origin)  # fairseq's trainer has freed the weights
        raise (UserError(sentence) if sentence else error) from error


def refusal(model: Any, state: Mapping[str, Any], origin: Origin = NAMELESS) -> Mismatch | None:
    """Return how another model's state differs from a model; None if it fits."""
    own, theirs = _shapes_of(model.state_dict()), _shapes_of(state)
    unseen_theirs, unseen_own = _unseen_options(model, origin)
    sentence = (
        _about_architecture(own, theirs, origin)
        or _about_options(sizes(theirs) | unseen_theirs, sizes(own) | unseen_own, origin)
        or _about_vocabulary(model, own, theirs, origin)
        or _about_gates(own, theirs, origin)
        or _about_tasks(model, own, theirs, origin)
        or _about_names(own, theirs, origin)
    )
    return Mismatch(sentence) if sentence else None


def refusal_of(model: Any, path: str, state: Mapping[str, Any]) -> UserError | None:
    """Return `refusal` by sizes and vocabulary, for a process that has no experts yet."""
    own, theirs, origin = _shapes_of(model.state_dict()), _shapes_of(state["model"]), origin_of(path, state)
    sentence = _about_options(sizes(theirs), sizes(own), origin) or _about_vocabulary(model, own, theirs, origin)
    return UserError(sentence) if sentence else None


def _shapes_of(state: Mapping[str, Any]) -> Shapes:
    """Return the shapes by name."""
    return {name: tuple(value.shape) for name, value in state.items()}


def sizes(shapes: Shapes) -> dict[str, Any]:
    """Return the options of stacks, experts and conditional parts that shapes show."""
    found: dict[str, Any] = {}
    for side, text in _SIDES.items():
        names = [name for name in shapes if name.startswith(side)]
        embedding = shapes.get(f"{side}.embed_tokens.weight")
        positions = shapes.get(f"{side}.embed_positions.weight")
        inner = [shapes[name][-2] for name in names if name.endswith((".fc1.weight", keys.FIRST_WEIGHT))]
        found |= {f"{side}_embed_dim": embedding[1]} if embedding else {}
        found |= {f"{side}_ffn_embed_dim": inner[0]} if inner else {}
        found[f"{side}_layers"] = len(_blocks(names))
        found[f"{side}_normalize_before"] = f"{side}.layer_norm.weight" in shapes
        found[f"{side}_learned_pos"] = positions is not None
        found |= {f"max_{text}_positions": positions[0] - _NO_POSITIONS} if positions else {}
    found["layernorm_embedding"] = "encoder.layernorm_embedding.weight" in shapes
    sparse = [name for name in shapes if keys.MOE in name]
    if sparse:
        preserving, paper = COMBINES
        found["expert_interval"] = min(_blocks(sparse)) + 1
        found["expert_combine"] = preserving if any(name.endswith(f"{keys.MOE}blend") for name in sparse) else paper
    return found | _conditional_options(shapes)


def _conditional_options(shapes: Shapes) -> dict[str, Any]:
    if not any(name.endswith(keys.TASK_EMBEDDINGS) for name in shapes):
        return {"conditional": _NO_CONDITIONS}
    has_chain = any(keys.SIDE_CHAIN in name for name in shapes)
    shapes = {name.replace(keys.SIDE_CHAIN, keys.CONDITIONS["bottleneck"]): shape for name, shape in shapes.items()}
    parts = [part for part, mark in keys.CONDITIONS.items() if any(mark in name for name in shapes)]
    biases = [shape for name, shape in shapes.items() if name.endswith(f"{keys.CONDITIONS['attention']}weight")]
    found = {"conditional": ",".join(parts)} | ({"conditional_positions": biases[0][0]} if biases else {})
    return found | ({"conditional_form": "large" if has_chain else "base"} if "bottleneck" in parts else {})


def _blocks(names: Iterable[str]) -> set[int]:
    return {int(match[1]) for match in map(_BLOCK.match, names) if match}


def _about_architecture(own: Shapes, theirs: Shapes, origin: Origin) -> str | None:
    for mark, needed, found in _ARCHITECTURES:
        if any(mark in name for name in theirs) and not any(mark in name for name in own):
            return f"`--arch` must be one with {needed}, to load {origin.name}, but is {found}."
    return None


def _about_options(theirs: Mapping[str, Any], own: Mapping[str, Any], origin: Origin) -> str | None:
    """Return one sentence with all options that differ."""
    names = [name for name in theirs if name in own and theirs[name] != own[name]]
    names = [name for name in names if theirs[name] != _NO_CONDITIONS]  # they can start afresh in any model
    if not names:
        return None
    wanted, here = ([str(_SWITCH.get(str(side[name]), side[name])) for name in names] for side in (theirs, own))
    first, *others = (f"`{flag(name)}`" for name in names)
    rules = [f"{first} must be {wanted[0]}", *map(" ".join, zip(others, wanted[1:], strict=True))]
    verb = "is" if len(names) == 1 else "they are"
    hint = "; `--arch` base_moe, base_dense or transformer leaves it off" * ("off" in wanted)
    return f"{_listed(rules)} to load {origin.name}, but {verb} {_listed(here)} instead{hint}."


def _listed(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _about_vocabulary(model: Any, own: Shapes, theirs: Shapes, origin: Origin) -> str | None:
    for side in _SIDES:
        here, there = (shapes.get(f"{side}.embed_tokens.weight", (0,))[0] for shapes in (own, theirs))
        if here == there:
            continue
        langs = _languages(getattr(getattr(model, side), "dictionary", None))
        if langs and origin.langs and here - len(langs) == there - len(origin.langs):
            return _about_languages(langs, origin)
        hint = f"; `--task {origin.task}` adds the tokens" if origin.task and origin.langs and not langs else ""
        return (
            f"DATA must have the dictionary that {origin.name} was trained with, of {there} entries"
            f"{_with_languages(origin.langs)}, but has one of {here}{_with_languages(langs)} instead{hint}."
        )
    return None


def _about_languages(langs: Sequence[str], origin: Origin) -> str:
    missing = [lang for lang in origin.langs if lang not in langs]
    others = [lang for lang in langs if lang not in origin.langs]
    parts = [f"without {shortened(missing)}"] * bool(missing) + [f"with {shortened(others)}"] * bool(others)
    return (
        f"`--langs` must be {_as_option(origin.langs)} to load {origin.name}, but is {_as_option(langs)} instead, "
        f"{' and '.join(parts)}; by default the languages are those of `--lang-pairs`"
        f"{', and `mtmoe add-task` adds one to a checkpoint' if not missing else ''}."
    )


def _as_option(langs: Sequence[str]) -> str:
    text = ",".join(langs)
    return text if len(text) <= MAX_SHOWN else f"{len(langs)} languages"


def _with_languages(langs: Sequence[str]) -> str:
    return f" (with tokens for {len(langs)} languages)" if langs else ""


def _languages(dictionary: Any) -> list[str]:
    """Return the languages whose tokens end a dictionary, as in fairseq's tasks."""
    found: list[str] = []
    for symbol in reversed(getattr(dictionary, "symbols", ())):
        match = _LANGUAGE_TOKEN.fullmatch(symbol)
        if match:
            found.insert(0, match[1] or match[2])
        elif symbol != "<mask>":
            break
    return found


def _about_gates(own: Shapes, theirs: Shapes, origin: Origin) -> str | None:
    """Return a sentence on another kind of gate: task gates have one more dimension."""
    for name in own:
        if name.endswith(keys.GATE) and len(own[name]) != len(theirs.get(name, own[name])):
            wanted = origin.model.get("expert_gates", "the checkpoint's")
            block = name.removesuffix(keys.GATE)
            return f"`--expert-gates` must be {wanted} to load {origin.name}, but has another kind of gate in {block}."
    return None


def _about_tasks(model: Any, own: Shapes, theirs: Shapes, origin: Origin) -> str | None:
    tables = [name for name in own if name.endswith((keys.GATE, keys.TASK_EMBEDDINGS))]
    here = training_model(model).task_names
    there = origin.model.get("task_names")
    if all(own[name] == theirs.get(name) for name in tables) or not here or not there:
        return None
    return (
        f"The model's tasks must be {there} to load {origin.name}, but are {','.join(here)} "
        "instead: `--task-ids`, `--langs` and `--lang-pairs` set them."
    )


def _about_names(own: Shapes, theirs: Shapes, origin: Origin) -> str | None:
    """Return a sentence on the first different parameter that no option explains."""
    name = next((name for name in (*own, *theirs) if own.get(name) != theirs.get(name)), None)
    if name is None:
        return None
    here, there = own.get(name), theirs.get(name)
    if here is None:
        return f"{origin.name} must be of this model, but has another parameter, `{name}`."
    if there is None:
        return f"{origin.name} must be of this model, but lacks `{name}`."
    return f"{origin.name} must be of this model, whose `{name}` has the shape {here}, but it has {there}."


def _unseen_options(model: Any, origin: Origin) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the two models' options that no shape shows: heads, and tied embeddings."""
    cfg = getattr(model, "cfg", None)
    stacks = {side: getattr(cfg, side, None) for side in _SIDES}
    own = {f"{side}_attention_heads": stack.attention_heads for side, stack in stacks.items() if stack is not None}
    shared = [name for name in _SHARING if getattr(cfg, name, False)][:1]  # the first implies the second
    if not origin.model.get("share_all_embeddings", False):
        own |= dict.fromkeys(shared, True)
    return {name: origin.model[name] for name in own if name in origin.model}, own


def origin_of(path: str, state: State) -> Origin:
    """Return the origin of a loaded checkpoint, for sentences."""
    cfg = state.get("cfg") or {}
    task = plain(cfg.get("task"))
    langs = (state.get("task_state") or {}).get("langs") or task.get("langs")
    pairs = task.get("lang_pairs")
    if not langs:  # fairseq's task infers them; our tasks store them
        langs = sorted({lang for pair in pairs for lang in pair.split("-")}) if isinstance(pairs, list) else ()
    names = tuple(langs.split(",") if isinstance(langs, str) else langs)
    return Origin(f"`{path}`", plain(cfg.get("model")), names, task.get("_name") or "")
