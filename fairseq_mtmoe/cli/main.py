"""`mtmoe`: commands that fairseq lacks."""

import errno
import importlib
import os
import signal
import sys
from collections import ChainMap, UserDict
from contextlib import suppress
from typing import Any

import click

from fairseq_mtmoe import __version__
from fairseq_mtmoe.core.errors import UserError, find_user_error
from fairseq_mtmoe.core.known_warnings import filter_known

SECTIONS = {
    "Prepare data": {
        "download": "Download the corpora of a recipe.",
        "prepare": "Make a data directory that fairseq-train reads.",
    },
    "Train": {
        "suggest": "Suggest a training command for a data directory and this machine.",
        "options": "List the options of an architecture, task or criterion.",
        "user-dir": "Print the path for fairseq's --user-dir.",
    },
    "Translate and evaluate": {
        "translate": "Translate text, or serve a web page that does.",
        "score": "Compute the log-probabilities of given translations.",
        "evaluate": "Score a model on test sets: BLEU, chrF++, task metrics.",
        "compare": "Compare evaluations, with significance tests.",
        "predict": "Write a model's predictions for benchmark test sets.",
    },
    "Convert models": {
        "import-hf": "Convert a pretrained Hugging Face translator, encoder or T5.",
        "export-hf": "Convert a model for transformers and CTranslate2.",
        "average": "Average the parameters of checkpoints.",
        "upcycle": "Turn a dense checkpoint into a sparse one.",
        "extend": "Add a language to a translator.",
        "add-task": "Add a task or a language pair to a checkpoint.",
        "merge": "Merge trained adapters into the model.",
        "reshard": "Change the number of experts in each checkpoint file.",
    },
    "Look at runs and machines": {
        "report": "Show training runs on one HTML page.",
        "doctor": "Check this machine: packages, GPUs, kernels, memory.",
    },
}
COMMANDS = ChainMap(*SECTIONS.values())
SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}


class _Modules(UserDict[str, Any]):
    """Commands by name. Each is imported from its module on first use."""

    def __getitem__(self, name: str) -> Any:
        return importlib.import_module(self.data[name]).command


class _Group(click.Group):
    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] == "train":
            ctx.fail(
                'Train with `fairseq-train DATA --user-dir "$(mtmoe user-dir)" …`; `mtmoe suggest '
                "DATA` prints the whole command."
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, summaries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(summaries.items()))


MODULES = _Modules({name: f"fairseq_mtmoe.cli.{name.replace('-', '_')}" for name in COMMANDS})


@click.command(cls=_Group, commands=MODULES, context_settings=SETTINGS)
@click.version_option(__version__)
def commands() -> None:
    """Prepare data, and train, evaluate and convert multilingual models in fairseq.

    Train with `fairseq-train --user-dir "$(mtmoe user-dir)"`: `mtmoe suggest` prints the command.
    """


def main() -> None:
    """Run the command line; on wrong input print a sentence to stderr and exit with 1."""
    filter_known()
    # `finally` blocks clean up.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        try:
            commands()
        finally:
            if sys.stdout is not None:  # as with `>&-`
                with suppress(BrokenPipeError):
                    sys.stdout.flush()
    except Exception as error:
        sentence = find_user_error(error) or _of_full_disk(error)
        if sentence is None:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        sys.exit(1)


def _of_full_disk(error: Exception) -> UserError | None:
    """Return the error of output that its disk or quota has no room for.

    Python does not name the file.
    """
    numbers = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if not isinstance(error, OSError) or error.errno not in numbers:
        return None
    # Python writes the rest when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return UserError(f"The output cannot be written: {error.strerror}.")
