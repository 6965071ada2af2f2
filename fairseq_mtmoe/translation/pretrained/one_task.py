"""Take the dense translator of each task out of a model with fixed gates.

With `--expert-gates fixed` a token's expert is its sentence's task, and the expert's weight is 1.
For the sentences of one task an expert layer is therefore a feed-forward layer: that task's expert.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fairseq_mtmoe.checkpoints.key_maps import DENSE_TO_EXPERTS, EXPERTS, MOE
from fairseq_mtmoe.core.errors import UserError, shortened, suggestion

FIXED = "fixed"
OF_EXPERTS = {name: key for key, name in DENSE_TO_EXPERTS.items()}


@dataclass(frozen=True)
class OneTask:
    """A task of a model with fixed gates.

    Attributes:
        index: the task's id, which is its expert's number.
        first_word: id of the language token that each translation begins with, if all of the
            task's translations begin with the same one.
        pairs: the chosen ones of the task.
    """

    index: int
    first_word: int | None
    pairs: tuple[str, ...]


def has_fixed_gates(options: Mapping[str, Any]) -> bool:
    """Return whether all expert layers of these options choose experts by task."""
    gates = str(options.get("expert_gates") or "").split(",")
    return {gate.strip() for gate in gates} == {FIXED}


def dense_parameters(parameters: Mapping[str, Tensor], task: int) -> dict[str, Tensor]:
    """Return the parameters of the dense model that computes one task.

    parameters: of the sparse model; an expert layer's are stacked, (N, …).
    """
    dense = {}
    for name, value in parameters.items():
        block, is_expert, part = name.partition(EXPERTS)
        if is_expert:
            dense[f"{block}.{OF_EXPERTS[part]}"] = value[task]
        elif MOE not in name:
            dense[name] = value
    return dense


def own_parameters(parameters: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the dense models' parameters that differ by task."""
    names = set()
    for name in parameters:
        block, is_expert, part = name.partition(EXPERTS)
        if is_expert:
            names.add(f"{block}.{OF_EXPERTS[part]}")
    return names


def chosen_tasks(
    codec: Any, pairs: Sequence[str], sources: Sequence[str], targets: Sequence[str]
) -> dict[str, OneTask]:
    """Return the tasks of the chosen directions, by the name of their folder.

    A task's name is its target language, its source language or its pair.

    Args:
        codec: the translator's languages and task (`TextCodec`).
        pairs: on which it was trained.
        sources: languages of `--from`; empty or `all`: any.
        targets: likewise, of `--to`.

    Raises:
        UserError: a language is in no pair, or chooses no task of the model.
    """
    kind = codec.task.args.task_ids
    _expect_choice(codec.path, kind, sources, targets)
    tasks: dict[str, OneTask] = {}
    for pair in _chosen_pairs(codec.path, pairs, sources, targets):
        source, _, target = pair.partition("-")
        name = {"source": source, "pair": pair}.get(kind, target)
        direction = codec.direction(source, target)
        first_word = direction.first_word
        others: tuple[str, ...] = ()
        if name in tasks:
            others = tasks[name].pairs
            if tasks[name].first_word != first_word:
                first_word = None
        tasks[name] = OneTask(direction.task_id, first_word, (*others, pair))
    return tasks


def _expect_choice(path: str, kind: str, sources: Sequence[str], targets: Sequence[str]) -> None:
    """Raise `UserError` if the options choose no tasks of this kind (`--task-ids`)."""
    choosing = {"source": ("--from",), "pair": ("--from", "--to")}.get(kind, ("--to",))
    advice = f"choose languages with `{'` or `'.join(choosing)}`, such as `{choosing[-1]} all`"
    if not sources and not targets:
        raise UserError(f"`{path}` has a feed-forward layer per language: {advice}.")
    for option, names in (("--from", sources), ("--to", targets)):
        if names and option not in choosing:
            side = "source" if kind == "source" else "target"
            raise UserError(
                f"`{option}` chooses no layers of `{path}`, which has a feed-forward layer per "
                f"{side} language (`--task-ids {kind}`): {advice}."
            )


def _chosen_pairs(
    path: str, pairs: Sequence[str], sources: Sequence[str], targets: Sequence[str]
) -> list[str]:
    chosen = list(pairs)
    for option, side, wanted in (("--from", 0, sources), ("--to", 1, targets)):
        there = sorted({pair.split("-")[side] for pair in pairs})
        if "all" in wanted and len(wanted) > 1:
            raise UserError(f"`{option} all` cannot be combined with names of languages.")
        for lang in wanted:
            if lang not in (*there, "all"):
                raise UserError(
                    f"`{option}` must be among {shortened(there, lang)}, the languages that "
                    f"`{path}` was trained on, or all, but names {lang!r}"
                    f"{suggestion(lang, there)}."
                )
        if wanted and "all" not in wanted:
            chosen = [pair for pair in chosen if pair.split("-")[side] in wanted]
    if not chosen:
        raise UserError(
            f"`--from` and `--to` must name a pair that `{path}` was trained on, "
            f"{', '.join(pairs)}, but name none."
        )
    return chosen
