"""`mtmoe`: the commands beside fairseq's own."""

import importlib
import sys

import click

from fairseq_mtmoe import __version__
from fairseq_mtmoe.cli._shared import stopped_by_sigterm
from fairseq_mtmoe.errors import find_user_error
from fairseq_mtmoe.known_warnings import filter_known

COMMANDS = (
    *("download", "prepare", "import-hf", "export-hf", "upcycle", "reshard", "average"),
    *("merge", "calibrate", "add-task", "extend"),
    *("translate", "evaluate", "predict", "compare", "similarity", "plot", "report", "options", "doctor"),
)


class _Commands(click.Group):
    """Imports a command's module when it is asked for: `mtmoe plot` does not wait for fairseq."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"fairseq_mtmoe.cli.{name.replace('-', '_')}").command
        return command


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
