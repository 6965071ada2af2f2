"""A checkpoint that is not this model's: what differs, in one sentence with the option that decides it.

torch lists every parameter that does not fit, and fairseq asks to "ensure that the architectures match". The sizes are
in the parameters' names and shapes, in the checkpoint as in the model; the languages are in its task's state. What
loads a model inside `explained` says which of them differ.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fairseq_mtmoe.checkpoints.key_maps import (
    CONDITIONS,
    FIRST_SHARED,
    FIRST_WEIGHT,
    GATE,
    MIXTURE,
    MOE,
    SIDE_CHAIN,
    TASK_EMBEDDINGS,
)
from fairseq_mtmoe.checkpoints.prices import PRICES
from fairseq_mtmoe.errors import UserError, find_user_error
from fairseq_mtmoe.moe.layer import COMBINES
from fairseq_mtmoe.protocols import NamesTasks

Shapes = Mapping[str, tuple[int, ...]]
State = Mapping[str, Any]

_SIDES = {"encoder": "source", "decoder": "target"}
_SHARING = ("share_all_embeddings", "share_decoder_input_output_embed")
_BLOCK = re.compile(r"(?:encoder|decoder)\.layers\.(\d+)\.")
_LANGUAGE_TOKEN = re.compile(r"__(.+)__|\[(.+)\]")
_NO_CONDITIONS = "none"
_NO_POSITIONS = 2  # fairseq's learned positions begin after the padding's index


@dataclass(frozen=True)
class Origin:
    """The checkpoint that is loaded: its name, the options of the model that it was saved from, its languages."""

    name: str = "the checkpoint"
    model: Mapping[str, Any] = field(default_factory=dict)
    langs: tuple[str, ...] = ()


class Mismatch(UserError):
    """A checkpoint is of another model, which a model finds that does not know the checkpoint's name."""


@contextmanager
def explained(model: Any, read: Sequence[tuple[Origin, State]]) -> Iterator[None]:
    """Inside, a model loads a checkpoint's state; where it cannot, a sentence says what differs.

    Args:
        model: which loads it.
        read: checkpoints and what they hold; the last one is meant, which may be read inside.

    Raises:
        UserError: that sentence, also where torch finds nothing wrong, but a shared tensor or a head would be lost.
    """
    try:
        yield
        sentence = _hidden(model, read[-1][0]) if read else None
        if sentence is not None:
            raise sentence
    except Exception as error:
        found = find_user_error(error)
        if not read or (found is not None and type(found) is not Mismatch):
            raise
        origin, state = read[-1]
        weights = state.get("model")  # fairseq's trainer lets go of them once they are loaded
        raise (_hidden(model, origin) if weights is None else refusal(model, weights, origin)) or error from error


def _hidden(model: Any, origin: Origin) -> UserError | None:
    """What a model that took the state has otherwise than the checkpoint's."""
    sentence = _about_options(*_unseen_options(model, origin), origin)
    return UserError(sentence) if sentence else None


def refusal(model: Any, state: Mapping[str, Any], origin: Origin | None = None) -> Mismatch | None:
    """What differs between a model and the state of another one, or None where nothing does."""
    origin = origin or Origin()
    theirs = shapes_of(state)
    # A checkpoint need not have prices.
    own = {
        name: shape
        for name, shape in shapes_of(model.state_dict()).items()
        if name in theirs or not name.endswith(PRICES)
    }
    unseen_theirs, unseen_own = _unseen_options(model, origin)
    sentence = (
        _about_experts(own, theirs, origin)
        or _about_adapters(own, theirs, origin)
        or _about_options(sizes(theirs) | unseen_theirs, sizes(own) | unseen_own, origin)
        or _about_vocabulary(model, own, theirs, origin)
        or _about_gates(own, theirs, origin)
        or _about_tasks(model, own, theirs, origin)
        or _about_names(own, theirs, origin)
    )
    return Mismatch(sentence) if sentence else None


def refusal_of(model: Any, path: str, state: Mapping[str, Any]) -> UserError | None:
    """As `refusal`, for a checkpoint that a process could not take its experts of; sizes and vocabulary alone."""
    own, theirs, origin = shapes_of(model.state_dict()), shapes_of(state["model"]), origin_of(path, state)
    sentence = _about_options(sizes(theirs), sizes(own), origin) or _about_vocabulary(model, own, theirs, origin)
    return UserError(sentence) if sentence else None


def shapes_of(state: Mapping[str, Any]) -> Shapes:
    """The shapes of a model's parameters and buffers."""
    return {name: tuple(value.shape) for name, value in state.items()}


def sizes(shapes: Shapes) -> dict[str, Any]:
    """The options of fairseq's transformer, and the experts', that a model's names and shapes tell of."""
    found: dict[str, Any] = {}
    for side, text in _SIDES.items():
        embedding = shapes.get(f"{side}.embed_tokens.weight")
        positions = shapes.get(f"{side}.embed_positions.weight")
        inner = [_inner_size(name, shapes) for name in shapes if name.startswith(side) and _is_inner(name)]
        found |= {f"{side}_embed_dim": embedding[1]} if embedding else {}
        found |= {f"{side}_ffn_embed_dim": inner[0]} if inner else {}
        found[f"{side}_layers"] = len(_blocks(name for name in shapes if name.startswith(side)))
        found[f"{side}_normalize_before"] = f"{side}.layer_norm.weight" in shapes
        found[f"{side}_learned_pos"] = positions is not None
        found |= {f"max_{text}_positions": positions[0] - _NO_POSITIONS} if positions else {}
    found["layernorm_embedding"] = "encoder.layernorm_embedding.weight" in shapes
    return found | _expert_options(shapes) | _conditional_options(shapes)


def _expert_options(shapes: Shapes) -> dict[str, Any]:
    names = [name for name in shapes if MOE in name]
    if not names:
        return {}
    preserving, paper = COMBINES
    return {
        "expert_interval": min(_blocks(names)) + 1,
        "expert_combine": preserving if any(name.endswith(f"{MOE}blend") for name in names) else paper,
        "shared_expert_dim": next((shapes[name][0] for name in names if name.endswith(FIRST_SHARED)), 0),
    }


def _conditional_options(shapes: Shapes) -> dict[str, Any]:
    """What adapts to tasks."""
    if not any(name.endswith(TASK_EMBEDDINGS) for name in shapes):
        return {"conditional": _NO_CONDITIONS}
    has_chain = any(SIDE_CHAIN in name for name in shapes)
    shapes = {name.replace(SIDE_CHAIN, CONDITIONS["bottleneck"]): shape for name, shape in shapes.items()}
    parts = [part for part, mark in CONDITIONS.items() if any(mark in name for name in shapes)]
    biases = [shape for name, shape in shapes.items() if name.endswith(f"{CONDITIONS['attention']}weight")]
    found = {"conditional": ",".join(parts)} | ({"conditional_positions": biases[0][0]} if biases else {})
    return found | ({"conditional_form": "large" if has_chain else "base"} if "bottleneck" in parts else {})


def _is_inner(name: str) -> bool:
    return name.endswith((".fc1.weight", FIRST_WEIGHT))


def _inner_size(name: str, shapes: Shapes) -> int:
    """Of a block's feed-forward layer: of an expert's and the shared one's together, where there is one."""
    (shared,) = shapes.get(name.replace(FIRST_WEIGHT, FIRST_SHARED), (0,))[:1] if name.endswith(FIRST_WEIGHT) else (0,)
    return shapes[name][-2] + shared


def _blocks(names: Iterable[str]) -> set[int]:
    return {int(match[1]) for match in map(_BLOCK.match, names) if match}


def _about_experts(own: Shapes, theirs: Shapes, origin: Origin) -> str | None:
    if _expert_options(own) or not _expert_options(theirs):
        return None
    rule = "one with experts, such as base_moe or mt_tag"
    return f"`--arch` must be {rule}, to load {origin.name}, but is a dense one instead."


def _about_adapters(own: Shapes, theirs: Shapes, origin: Origin) -> str | None:
    if any(MIXTURE in name for name in own) or not any(MIXTURE in name for name in theirs):
        return None
    return (
        f"`--arch` must be one with adapters, such as pemt_t5, to load {origin.name}, but is another instead; to train "
        "all weights, begin with those that its run began with."
    )


def _about_options(theirs: Mapping[str, Any], own: Mapping[str, Any], origin: Origin) -> str | None:
    """One sentence with all options that differ."""
    names = [name for name in theirs if name in own and theirs[name] != own[name]]
    names = [name for name in names if theirs[name] != _NO_CONDITIONS]  # they can begin anew in any model
    if not names:
        return None
    options = [f"`--{name.replace('_', '-')}`" for name in names]
    wanted = [_shown(theirs[name]) for name in names]
    rules = [f"{options[0]} must be {wanted[0]}"]
    rules += [f"{option} {value}" for option, value in zip(options[1:], wanted[1:], strict=True)]
    verb = "is" if len(names) == 1 else "they are"
    found = _listed([_shown(own[name]) for name in names])
    hint = "; base_moe, base_dense and transformer are an `--arch` that leaves it off" * ("off" in wanted)
    return f"{_listed(rules)} to load {origin.name}, but {verb} {found} instead{hint}."


def _shown(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


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
        return (
            f"DATA must have the dictionary that {origin.name} was trained with, of {there} entries"
            f"{_with_languages(origin.langs)}, but has one of {here}{_with_languages(langs)} instead."
        )
    return None


def _about_languages(langs: tuple[str, ...], origin: Origin) -> str:
    missing = [lang for lang in origin.langs if lang not in langs]
    others = [lang for lang in langs if lang not in origin.langs]
    parts = [f"without {', '.join(missing)}"] * bool(missing) + [f"with {', '.join(others)}"] * bool(others)
    return (
        f"`--langs` must be {','.join(origin.langs)} to load {origin.name}, but is {','.join(langs)} instead, "
        f"{' and '.join(parts)}; where it is not given, the languages are those of `--lang-pairs`"
        f"{', and `mtmoe add-task` adds one to a checkpoint' if not missing else ''}."
    )


def _with_languages(langs: tuple[str, ...]) -> str:
    return f" (with tokens for {len(langs)} languages)" if langs else ""


def _languages(dictionary: Any) -> tuple[str, ...]:
    """The languages whose tokens end a dictionary, where fairseq's multilingual tasks put them."""
    found: list[str] = []
    symbols = list(getattr(dictionary, "symbols", ()))
    while symbols and (symbols[-1] == "<mask>" or _LANGUAGE_TOKEN.fullmatch(symbols[-1])):
        match = _LANGUAGE_TOKEN.fullmatch(symbols.pop())
        if match:
            found.append(match[1] or match[2])
    return tuple(reversed(found))


def _about_gates(own: Shapes, theirs: Shapes, origin: Origin) -> str | None:
    """Of task gates there is one for each task, in a dimension that other gates have not."""
    for name in own:
        if name.endswith(GATE) and len(own[name]) != len(theirs.get(name, own[name])):
            wanted = origin.model.get("expert_gates", "the checkpoint's")
            block = name.removesuffix(GATE)
            return f"`--expert-gates` must be {wanted} to load {origin.name}, but has another kind of gate in {block}."
    return None


def _about_tasks(model: Any, own: Shapes, theirs: Shapes, origin: Origin) -> str | None:
    tables = [name for name in own if name.endswith((GATE, TASK_EMBEDDINGS))]
    here = model.task_names if isinstance(model, NamesTasks) else None
    there = origin.model.get("task_names")
    if all(own[name] == theirs.get(name) for name in tables) or not here or not there:
        return None
    return (
        f"The tasks that the model tells apart must be {there} to load {origin.name}, but are {','.join(here)} "
        "instead: `--task-ids`, `--langs` and `--lang-pairs` decide them."
    )


def _about_names(own: Shapes, theirs: Shapes, origin: Origin) -> str | None:
    """The first parameter that is not the same, where none of the options above explains it."""
    for name in dict.fromkeys((*own, *theirs)):
        here, there = own.get(name), theirs.get(name)
        if here is None:
            return f"{origin.name} must be of this model, but has a parameter that it has not, `{name}`."
        if there is None:
            return f"{origin.name} must be of this model, but has no `{name}`."
        if here != there:
            return f"{origin.name} must be of this model, whose `{name}` has the shape {here}, but it has {there}."
    return None


def _unseen_options(model: Any, origin: Origin) -> tuple[dict[str, Any], dict[str, Any]]:
    """The checkpoint's and the model's options that shapes do not show: heads, and what is one tensor.

    A model that shares embeddings would lose one of two that were trained apart; the other way round nothing is lost.
    """
    cfg = getattr(model, "cfg", None)
    stacks = {side: getattr(cfg, side, None) for side in _SIDES}
    own = {f"{side}_attention_heads": stack.attention_heads for side, stack in stacks.items() if stack is not None}
    shared = [name for name in _SHARING if getattr(cfg, name, False)][:1]  # the first brings the second with it
    if not origin.model.get("share_all_embeddings", False):
        own |= dict.fromkeys(shared, True)
    return {name: origin.model[name] for name in own if name in origin.model}, own


def origin_of(path: str, state: State) -> Origin:
    """A checkpoint that is loaded, for sentences."""
    cfg = state.get("cfg") or {}
    task = _plain(cfg.get("task"))
    langs = (state.get("task_state") or {}).get("langs") or task.get("langs") or _languages_of(task.get("lang_pairs"))
    return Origin(f"`{path}`", _plain(cfg.get("model")), tuple(langs.split(",") if isinstance(langs, str) else langs))


def _plain(options: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf

    if isinstance(options, Namespace):
        return vars(options)
    plain: Any = OmegaConf.to_container(options) if OmegaConf.is_config(options) else options
    return plain if isinstance(plain, dict) else {}


def _languages_of(pairs: Any) -> list[str]:
    """Those of a run of fairseq's task, as it infers them; a run of ours remembers its own in the task's state."""
    return sorted({lang for pair in pairs for lang in pair.split("-")}) if isinstance(pairs, list) else []
