"""`mtmoe`: the commands beside fairseq's own."""

import importlib
import sys

import click

from fairseq_mtmoe import __version__
from fairseq_mtmoe.cli._shared import stopped_by_sigterm
from fairseq_mtmoe.errors import find_user_error
from fairseq_mtmoe.known_warnings import filter_known

COMMANDS = {
    "download": "Download the corpora of a recipe.",
    "prepare": "Make a data directory that fairseq-train reads.",
    "suggest": "Suggest a training for a data directory and this machine.",
    "import-hf": "Read a pretrained translator or encoder of Hugging Face.",
    "export-hf": "Write a folder that transformers and CTranslate2 read.",
    "upcycle": "Make a dense checkpoint sparse.",
    "reshard": "Write a checkpoint's experts in other files.",
    "average": "Average the parameters of checkpoints.",
    "merge": "Fold adapters that were trained into the model.",
    "calibrate": "Give BASE layers the prices by which they evaluate.",
    "add-task": "Add a task or a language pair to a checkpoint.",
    "extend": "Add a language to a translator.",
    "translate": "Translate text.",
    "score": "Score translations that are there: their log-probabilities.",
    "evaluate": "Score a model on test sets: BLEU, chrF++, tasks' metrics.",
    "predict": "Write a model's predictions for benchmarks' test sets.",
    "compare": "Compare evaluations, with significance.",
    "similarity": "Compare tasks by the covariances that a model learned.",
    "plot": "Draw pictures of a training run.",
    "report": "Show training runs on one page, in a browser.",
    "options": "List the options of an architecture, task or criterion.",
    "user-dir": "Print the path for fairseq's --user-dir.",
    "doctor": "Show what this machine has of what a run needs.",
}


class _Commands(click.Group):
    """Imports a command's module when it is asked for: `mtmoe plot` does not wait for fairseq, `--help` for any."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"fairseq_mtmoe.cli.{name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def commands() -> None:
    """Prepare text, sparsify, evaluate and look at models of the fairseq plugin fairseq_mtmoe.

    Models are trained with fairseq-train and used with fairseq-generate, each with --user-dir fairseq_mtmoe.
    """


def main() -> None:
    """Run the command line; wrong input is one sentence on stderr and exit status 1."""
    filter_known()
    try:
        with stopped_by_sigterm():
            commands()
    except Exception as error:
        sentence = find_user_error(error)
        if sentence is None:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        sys.exit(1)
