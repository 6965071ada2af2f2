"""The tables of docs/reference/options.md, which `make docs` writes below the page's text."""

from fairseq_mtmoe.cli._registered import Choice, Option, choices_by_class, flag_of, shown

KINDS = {"arch": "Architectures", "task": "Tasks", "criterion": "Criterions", "optimizer": "Optimizers"}


def tables() -> str:
    """Return a section for each kind, with a table for each class."""
    blocks = []
    for kind, title in KINDS.items():
        blocks.append(f"\n## {title}\n")
        blocks += [section(group) for group in choices_by_class() if group[0].kind == kind]
    return "".join(blocks)


def section(group: list[Choice]) -> str:
    """Return a class's names and table, with the defaults of its first name."""
    first, *others = group
    others_line = f"\nAlso {', '.join(f'`{choice.name}`' for choice in others)}.\n" if others else ""
    fairseq_flags = [f"`{option.flag}`" for option in first.options() if not option.is_ours]
    fairseq_line = f"\nfairseq's: {', '.join(fairseq_flags)}.\n" if fairseq_flags else ""
    heading = f"\n### {flag_of(first.kind)} {first.name}\n{others_line}\n"
    return heading + table(first.new_options()) + differences(first, others) + fairseq_line


def table(options: list[Option]) -> str:
    """Return a row for each option."""
    if not options:
        return "It adds no option.\n"
    rows = [f"| `{option.flag}` | {code(option.default)} | {cell(option.meaning)} |\n" for option in options]
    return "| option | default | meaning |\n|---|---|---|\n" + "".join(rows)


def differences(first: Choice, others: list[Choice]) -> str:
    """Return our options whose defaults differ in a class's other names."""
    defaults = {option.flag: option.default for option in first.new_options()}
    phrases = [
        f"`{choice.name}` has `{option.flag} {shown(option.default) or 'unset'}`"
        for choice in others
        for option in choice.new_options()
        if option.default != defaults[option.flag]
    ]
    return f"\nOther defaults: {'; '.join(phrases)}.\n" if phrases else ""


def code(default: object) -> str:
    """Return a default as code, or an empty text without one."""
    text = cell(shown(default))
    return f"`{text}`" if text else ""


def cell(text: str) -> str:
    """Return text that is safe in a table's cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")
