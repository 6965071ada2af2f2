"""A command of `mtmoe`, in this process."""

from click.testing import CliRunner

from fairseq_mtmoe.cli.main import commands


def mtmoe(*arguments: object) -> str:
    """What the command prints on both streams; an error that it raises is the caller's."""
    result = CliRunner().invoke(commands, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output
