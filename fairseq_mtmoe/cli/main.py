"""`mtmoe`: the commands beside fairseq's own."""

import errno
import importlib
import os
import signal
import sys
from contextlib import suppress

import click

from fairseq_mtmoe import __version__
from fairseq_mtmoe.core.errors import UserError, find_user_error
from fairseq_mtmoe.core.known_warnings import filter_known

COMMANDS = {
    "download": "Download the corpora of a recipe.",
    "prepare": "Make a data directory that fairseq-train reads.",
    "suggest": "Suggest a training for a data directory and this machine.",
    "import-hf": "Convert a pretrained Hugging Face translator, encoder or T5.",
    "export-hf": "Write a folder for transformers and CTranslate2.",
    "upcycle": "Make a dense checkpoint sparse.",
    "reshard": "Change the number of experts in each checkpoint file.",
    "average": "Average the parameters of checkpoints.",
    "merge": "Merge trained adapters into the model.",
    "add-task": "Add a task or a language pair to a checkpoint.",
    "extend": "Add a language to a translator.",
    "translate": "Translate text.",
    "score": "Compute the log-probabilities of given translations.",
    "evaluate": "Score a model on test sets: BLEU, chrF++, task metrics.",
    "predict": "Write a model's predictions for benchmark test sets.",
    "compare": "Compare evaluations and test significance.",
    "report": "Show training runs on one HTML page.",
    "options": "List the options of an architecture, task or criterion.",
    "user-dir": "Print the path for fairseq's --user-dir.",
    "doctor": "Check this machine: packages, GPUs, kernels, memory.",
}
SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}


class _Commands(click.Group):
    """Group that imports a command's module on first use.

    `mtmoe compare` does not import fairseq, and `mtmoe --help` imports no command.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(
            f"fairseq_mtmoe.cli.{name.replace('-', '_')}"
        ).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=_Commands, context_settings=SETTINGS)
@click.version_option(__version__)
def commands() -> None:
    """Prepare data, and convert, evaluate and inspect models of fairseq_mtmoe.

    Train with fairseq-train and translate with fairseq-generate, each with --user-dir
    fairseq_mtmoe.
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
    return UserError(f"The output must fit on its disk, but does not: {error.strerror}.")
