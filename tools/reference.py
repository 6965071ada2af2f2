"""`make reference`: write the registered options.

It writes the file of `mtmoe options` and docs/reference/options.md.
"""

from pathlib import Path

from fairseq_mtmoe.cli import options
from fairseq_mtmoe.cli._registered import collect
from fairseq_mtmoe.cli.options import Choice, Option, Registered, by_class, flag_of, shown

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "options.md"
KINDS = {"arch": "Architectures", "task": "Tasks", "criterion": "Criterions", "optimizer": "Optimizers"}
BEGIN = """# Options

Look up every option that this package adds to fairseq, with its default. `mtmoe options` prints the same tables:

```
mtmoe options base_moe_wmt15
```

`make reference` writes this page. Options that fairseq has too are named below each table; they keep fairseq's meaning.
"""


def page(found: Registered) -> str:
    """Return the page: a section for each kind, a table for each class."""
    blocks = [BEGIN]
    for kind, title in KINDS.items():
        blocks.append(f"\n## {title}\n")
        blocks += [section(named) for named in by_class(found.choices) if named[0].kind == kind]
    return "".join(blocks)


def section(named: list[Choice]) -> str:
    """Return a class's names and table, with the defaults of its first name."""
    first = named[0]
    also = f"\nAlso {', '.join(f'`{one.name}`' for one in named[1:])}.\n" if named[1:] else ""
    own = table(first.own) if first.own else "It adds no option.\n"
    theirs = [f"`{option.flag}`" for option in first.options if not option.is_ours]
    rest = f"\nfairseq's: {', '.join(theirs)}.\n" if theirs else ""
    return f"\n### {flag_of(first.kind)} {first.name}\n{also}\n{own}{differences(named)}{rest}"


def table(own: list[Option]) -> str:
    """Return a row for each option."""
    rows = [f"| `{one.flag}` | {code(one.default)} | {cell(one.meaning)} |\n" for one in own]
    return "| option | default | meaning |\n|---|---|---|\n" + "".join(rows)


def differences(named: list[Choice]) -> str:
    """Return our options whose defaults differ in a class's other names."""
    first = {option.flag: option.default for option in named[0].own}
    found = [
        f"`{one.name}` has `{option.flag} {shown(option.default) or 'unset'}`"
        for one in named[1:]
        for option in one.own
        if option.default != first[option.flag]
    ]
    return f"\nOther defaults: {'; '.join(found)}.\n" if found else ""


def code(default: object) -> str:
    """Return a default as code, or an empty text without one."""
    text = cell(shown(default))
    return f"`{text}`" if text else ""


def cell(text: str) -> str:
    """Return text that is safe in a table's cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")


def main() -> None:
    """Write both files."""
    found = collect()
    options.FILE.write_text(found.to_json(), encoding="utf-8")
    PAGE.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
