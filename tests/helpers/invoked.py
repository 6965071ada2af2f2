"""A command of `mtmoe`, in this process."""

from click.testing import CliRunner, Result

from fairseq_mtmoe.cli.main import commands


def invoked(*arguments: object) -> Result:
    """A command that must end well; an error that it raises is the caller's."""
    result = CliRunner().invoke(commands, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def mtmoe(*arguments: object) -> str:
    """What the command prints on both streams."""
    return invoked(*arguments).output
