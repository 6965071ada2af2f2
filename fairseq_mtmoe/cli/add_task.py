"""`mtmoe add-task`: a checkpoint with one more task."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fairseq_mtmoe.cli._shared import PATH, expect_checkpoints, overwrite_option, quiet_fairseq
from fairseq_mtmoe.core.errors import UserError, raise_invalid, shortened
from fairseq_mtmoe.core.files import output_file

if TYPE_CHECKING:
    from torch import Tensor

    from fairseq_mtmoe.nlu.bert.heads import HeadSize


@click.command("add-task")
@click.argument("checkpoint", type=PATH)
@click.argument("out", type=PATH)
@click.option(
    "--task",
    "name",
    required=True,
    metavar="NAME",
    help="New task: a row of the task table; in a translation model a language, or with --task-ids "
    "pair a language pair.",
)
@click.option(
    "--embedding-from",
    "begins_as",
    default="mean",
    metavar="TASK[,TASK…]",
    help="Initial value of the task's embedding and gates: a copy from a task of CHECKPOINT, the "
    "mean of several tasks, the `mean` of all, or drawn: `random` (N(0, 0.02²)) or `xavier`. With "
    "fixed gates the task whose expert is copied; with `mean` it is the first task.",
)
@click.option(
    "--task-table",
    metavar="FILE[,FILE…]",
    help="Additional task tables, one of them with the new task (docs/reference/task_table.md).",
)
@click.option(
    "--seed",
    type=int,
    default=1,
    help="Seed for the new head and for drawn values.",
)
@overwrite_option
@quiet_fairseq()
def command(
    checkpoint: Path,
    out: Path,
    name: str,
    begins_as: str,
    task_table: str | None,
    seed: int,
    overwrite: bool,
) -> None:
    """Write CHECKPOINT with one more task to OUT, to continue training from it.

    The task embeddings and the gates of --expert-gates task get one more row, and the layers of
    --expert-gates fixed one more expert. A new benchmark task also gets a head. A new language gets
    its --langs token, after all others. All else is kept: the other tasks' predictions, the
    optimizer state and the experts' files.

    Continue with --finetune-from-model OUT (and --glue-tasks NAME to train the new task alone), or
    with --restore-file OUT on all tasks, the new one last.
    """
    output_file("OUT", out, overwrite, CHECKPOINT=checkpoint)
    expect_checkpoints(checkpoint)
    from fairseq_mtmoe.checkpoints import rebuild
    from fairseq_mtmoe.checkpoints.assemble import load_shared_part
    from fairseq_mtmoe.checkpoints.new_task import NewTask, Shapes, options_with_task, with_task
    from fairseq_mtmoe.checkpoints.rebuild import model_options, without_memory
    from fairseq_mtmoe.checkpoints.rewriting import save_with_experts
    from fairseq_mtmoe.nlu.bert.heads import heads_from_text

    state = load_shared_part(checkpoint, mapped=True)
    rebuild.check(checkpoint, state, ["model"])
    options = model_options(state) or {}
    heads = heads_from_text(options["heads"]) if options.get("heads") else {}
    tasks = list(heads) or (options.get("task_names") or "").split(",")
    if tasks == [""]:
        raise UserError(f"`{checkpoint}` does not contain a model of several tasks.")
    if name in tasks:
        raise UserError(f"`--task` {name} is a task of the checkpoint already: {', '.join(tasks)}.")
    if heads:
        change = _task_of_benchmark(options, heads, name, task_table, seed)
    else:
        change = _task_of_translation(state, tasks, name)
    larger = {**options_with_task(options, tasks, name), **change.options}
    before = Shapes.of(without_memory(checkpoint, state, options))
    after = Shapes.of(without_memory(checkpoint, state, larger, change.symbols))
    langs = (state.get("task_state") or {}).get("langs") or []
    new = NewTask(tasks, begins_as, change.head, seed, langs)
    result = with_task(state, new, before, after)
    result["cfg"] = {**state["cfg"], "model": larger}
    result["task_state"] = {**(state.get("task_state") or {}), **change.task_state}
    save_with_experts(result, checkpoint, out)
    moments = "with" if "last_optimizer_state" in result else "without"
    click.echo(f"{out}: tasks {', '.join(tasks)} and {name}, {moments} the optimizer state")
    if change.symbols:
        click.echo(
            f"Its languages are in the order --langs {','.join(change.task_state['langs'])}."
        )
    if "fixed" in (options.get("expert_gates") or ""):
        click.echo(f"Its expert for {name} is a copy of the one for {new.expert_of}.")
    if larger.get("num_experts") != options.get("num_experts"):
        click.echo(f"Its layers have an expert more: --num-experts {larger['num_experts']}.")


class _Change(NamedTuple):
    """A new task's changes to a checkpoint's model options and task settings."""

    options: Mapping[str, Any] = {}
    head: Mapping[str, Tensor] = {}
    symbols: int = 0  # new symbols in the vocabulary
    task_state: Mapping[str, Any] = {}


def _task_of_benchmark(
    options: Mapping[str, Any],
    heads: Mapping[str, HeadSize],
    name: str,
    task_table: str | None,
    seed: int,
) -> _Change:
    import torch

    from fairseq_mtmoe.checkpoints.head_labels import OPTION, labels_of, labels_to_text
    from fairseq_mtmoe.nlu.bert.heads import TaskHeads, heads_to_text
    from fairseq_mtmoe.nlu.data.table import load_tables
    from fairseq_mtmoe.nlu.types import labels_of_outputs, task_type_of

    rows = load_tables([Path(path) for path in (task_table or "").split(",") if path])
    trained = [task for task, row in rows.items() if row.sets("train")]
    if name not in trained:
        raise_invalid(
            "--task", f"a task with training data in the task tables, {', '.join(trained)}", name
        )
    size = task_type_of(rows[name]).head
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = TaskHeads(json.loads(options["encoder"])["hidden_size"], {name: size}).state_dict(
            prefix="heads."
        )
    changed = {"heads": heads_to_text({**heads, name: size})}
    labels = labels_of("CHECKPOINT", options)
    if labels:
        changed[OPTION] = labels_to_text({**labels, name: labels_of_outputs(rows[name])})
    return _Change(changed, head)


def _task_of_translation(state: Mapping[str, Any], tasks: Sequence[str], name: str) -> _Change:
    settings = state.get("task_state") or {}
    langs = settings.get("langs") or []
    if settings.get("task_ids") == "pair":
        if not (re.fullmatch("[^-]+-[^-]+", name) and set(name.split("-")) <= set(langs)):
            rule = (
                f"a pair such as {tasks[0]} of the checkpoint's languages {shortened(langs, name)}"
            )
            raise_invalid("--task", rule, name)
        return _Change(task_state={"lang_pairs": [*settings["lang_pairs"], name]})
    if name in langs:  # a source that becomes a target
        return _Change()
    remedy = "train a model with the new language in `--langs`"
    if any("+" in task for task in tasks):
        raise UserError(
            f"`CHECKPOINT` has groups of languages as tasks (`--task-ids {settings['task_ids']}`), "
            f"to which no new language can be added; {remedy}."
        )
    if not re.fullmatch(r"[^-+,\s]+", name):
        raise_invalid("--task", f"a language such as {tasks[0]}", name)
    has_tokens = (
        settings.get("lang_tok_style") == "multilingual" and len(settings["langtoks_specs"]) == 1
    )
    if not has_tokens or not set(tasks) <= set(langs):
        raise UserError(
            "`CHECKPOINT` must have languages as tasks and a vocabulary that ends in one token for "
            f"each, so that one can be added; {remedy}."
        )
    return _Change(symbols=1, task_state={"langs": [*langs, name]})
