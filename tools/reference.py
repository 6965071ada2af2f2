"""The tables of docs/reference/options.md, which `make docs` writes below the page's text."""

from fairseq_mtmoe.cli._registered import Choice, Option, choices, choices_by_class, flag_of, shown

# The dataclasses that declare a topic's options
TOPICS = {
    "Experts": ("ExpertOptions", "MoELabelSmoothedCrossEntropyConfig"),
    "Sampling of languages and tasks": ("SamplingConfig",),
    "Translation": ("TranslationHeatedConfig", "TranslatorForm"),
    "Benchmarks and pretrained encoders": (
        "BenchmarkConfig", "GlueConfig", "EncoderOptions", "MTTaGConfig", "TextToTextConfig",
    ),
    "Conditional parts": ("ConditionalOptions", "EncoderConditionalOptions"),
    "Adapters (PEMT)": ("PemtOptions", "PemtCriterionConfig"),
    "Every run": ("RunOptions", "TaskOptions"),
}  # fmt: skip
Uses = list[tuple[Choice, Option]]


def tables() -> str:
    """Return a section for each topic, and one with all names."""
    declared = options_by_dataclass()
    text = ""
    for title, dataclasses in TOPICS.items():
        text += f"\n## {title}\n"
        for dataclass in dataclasses:
            text += table(declared.pop(dataclass))
    assert not declared, f"TOPICS lacks {', '.join(declared)}"
    return text + "\n## Names\n\n| option | names |\n|---|---|\n" + "".join(map(names_row, choices_by_class()))


def options_by_dataclass() -> dict[str, dict[str, Uses]]:
    """Return our options by the dataclass that declares them, each with the choices that have it."""
    declared: dict[str, dict[str, Uses]] = {}
    for choice in choices():
        for option in choice.new_options():
            options = declared.setdefault(dataclass_of(choice, option), {})
            options.setdefault(option.flag, []).append((choice, option))
    return declared


def dataclass_of(choice: Choice, option: Option) -> str:
    """Return the dataclass that first declares an option; one below it may give another default."""
    field = option.flag.removeprefix("--").replace("-", "_")
    bases: tuple[type, ...] = choice.registered.__dataclass.__mro__
    return [base.__name__ for base in bases if field in vars(base).get("__annotations__", {})][-1]


def table(options: dict[str, Uses]) -> str:
    """Return the choices that have a dataclass's options, and a row for each option."""
    users = [choice for choice, _ in next(iter(options.values()))]
    rows = [f"| `{flag}` | {default(uses)} | {cell(uses[0][1].meaning)} |\n" for flag, uses in options.items()]
    names = f"`{flag_of(users[0].kind)}` {families(users)}"
    return f"\nFor {names}:\n\n| option | default | meaning |\n|---|---|---|\n" + "".join(rows)


def default(uses: Uses) -> str:
    """Return the default of most choices, and in parentheses those with another one."""
    names: dict[str, list[Choice]] = {}
    for choice, option in uses:
        names.setdefault(code(option.default), []).append(choice)
    usual = max(names, key=lambda value: len(names[value]))
    others = [f"{value or 'none'} for {families(names[value])}" for value in names if value != usual]
    return f"{usual} ({'; '.join(others)})" if others else usual


def families(chosen: list[Choice]) -> str:
    """Return names of choices as code; a class's names are `first…` if all are chosen."""
    names: list[str] = []
    for group in choices_by_class():
        part = [f"`{choice.name}`" for choice in group if choice in chosen]
        names += [f"`{group[0].name}…`"] if len(part) == len(group) > 1 else part
    return ", ".join(names)


def names_row(group: list[Choice]) -> str:
    """Return a class's row in the table of names."""
    return f"| `{flag_of(group[0].kind)}` | {', '.join(f'`{choice.name}`' for choice in group)} |\n"


def code(value: object) -> str:
    """Return a default as code, or an empty text without one."""
    text = cell(shown(value))
    return f"`{text}`" if text else ""


def cell(text: str) -> str:
    """Return text that is safe in a table's cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")
