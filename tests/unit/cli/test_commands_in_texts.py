"""What READMEs, docs and example scripts name is there: commands, options, scripts, and what links lead to."""

import argparse
import re
from functools import cache

import click
from fairseq import options
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY

from fairseq_mtmoe import register
from fairseq_mtmoe.cli.main import commands
from tests.helpers.commands import REPOSITORY

TEXTS = sorted(
    path.relative_to(REPOSITORY).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "examples/**/*.sh", "fairseq_mtmoe/**/*.md")
    for path in REPOSITORY.glob(pattern)
    if path.name != "CHANGELOG.md"  # which tells of what was
)
OF_FAIRSEQ = {
    "train": options.get_training_parser, "generate": options.get_generation_parser,
    "interactive": options.get_interactive_generation_parser, "validate": options.get_validation_parser,
}  # fmt: skip
COMMAND = re.compile(r"(?<!\S)['\"]?(mtmoe|fairseq-(train|generate|interactive|validate))['\"]?(?!\S).*")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
SCRIPT = re.compile(r"(?<![\w/])(?:examples|tools|benchmarks)/[\w./]+\.(?:sh|py|yaml|json|sbatch)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED, INLINE = re.compile(r"^```\w*\n(.*?)^```", re.M | re.S), re.compile(r"`([^`]+)`")


def commands_of(path):
    """The words of each command of a text: lines of code blocks and of scripts, and what is code within a sentence."""
    text = (REPOSITORY / path).read_text(encoding="utf-8")
    if path.endswith(".sh"):
        lines = code_lines(text)
    else:
        lines = [line for block in FENCED.findall(text) for line in code_lines(block)]
        lines += [" ".join(code.split()) for code in INLINE.findall(FENCED.sub("", text))]
    for found in filter(None, map(COMMAND.search, lines)):
        yield [word.strip("'\"") for word in found[0].split()]


def code_lines(block):
    """Lines whose ends a backslash joins, without comments."""
    return [re.sub(r"(?:^|\s)#.*", "", line) for line in block.replace("\\\n", " ").splitlines()]


def unknown_in(words):
    if words[0] == "mtmoe":
        return unknown_to_mtmoe(words[1:])
    asked = [option for word in words[1:] for option in OPTION.findall(word)]
    return [option for option in asked if option not in options_of_fairseq(words[0].removeprefix("fairseq-"))]


def unknown_to_mtmoe(words):
    found, rest = commands, list(words)
    while isinstance(found, click.Group) and rest and re.fullmatch(r"[a-z][a-z-]*", rest[0]):
        named = found.get_command(click.Context(found), rest[0])
        if named is None:
            return [rest[0]]
        found, rest = named, rest[1:]
    parameters = found.get_params(click.Context(found))
    known = {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    return [option for word in rest for option in OPTION.findall(word) if option not in known]


@cache
def options_of_fairseq(kind):
    """All that its parser has with any task, architecture, criterion and so on."""
    register()
    parser = OF_FAIRSEQ[kind](default_task="translation")
    chosen = [TASK_REGISTRY, MODEL_REGISTRY, ARCH_MODEL_REGISTRY, *(one["registry"] for one in REGISTRIES.values())]
    known = set(parser._option_string_actions)
    for registered in {one for registry in chosen for one in registry.values()}:
        own = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
        if hasattr(registered, "add_args"):
            registered.add_args(own)
        elif hasattr(registered, "__dataclass"):
            gen_parser_from_dataclass(own, registered.__dataclass())
        known |= set(own._option_string_actions)
    return known


def test_commands_options_scripts_and_links_exist():
    wrong = {}
    for text in TEXTS:
        path, content = REPOSITORY / text, (REPOSITORY / text).read_text(encoding="utf-8")
        found = [unknown for words in commands_of(text) for unknown in unknown_in(words)]
        found += [name for name in SCRIPT.findall(content) if not (REPOSITORY / name).exists()]
        if path.suffix == ".md":
            found += [link for link in LINK.findall(FENCED.sub("", content)) if not leads_somewhere(link, path)]
        wrong |= {text: found} if found else {}
    assert wrong == {}


def leads_somewhere(link, path):
    """Whether a link within the repository has its file and its heading; others are not looked at."""
    name, _, heading = link.partition("#")
    target = path.parent / name if name else path
    if re.match(r"\w+:", link):
        return True
    return target.exists() and (not heading or target.suffix != ".md" or heading in anchors(target))


@cache
def anchors(path):
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_what_is_none_is_found():
    assert unknown_to_mtmoe(["prepare", "corpora", "RAW", "DATA", "--recipe", "folder", "--clean"]) == ["--clean"]
    assert unknown_in(["fairseq-train", "DATA", "--num-experts", "4", "--num-expert", "4"]) == ["--num-expert"]
    assert len(list(commands_of("README.md"))) > 5
    assert not leads_somewhere("docs/development/tour.md#a-house", REPOSITORY / "README.md")
