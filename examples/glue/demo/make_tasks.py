"""Make five tasks in the formats of GLUE and SuperGLUE from libraries' docstrings.

    python make_tasks.py OUT [--libraries scipy,sklearn,…] [--size 2000]

Training, validation and test examples come from different subpackages of each library, the same
for all tasks. No text in any task's training data occurs in any task's validation data. A finished
OUT does not change.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from docstrings import Description, read_descriptions

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.files import new_folder

Example = dict[str, Any]

LIBRARIES = "django,matplotlib,networkx,scipy,sklearn"
SHARES = {
    "valid": 0.2,
    "test": 0.1,
}  # shares of each library's docstrings; the rest is training data
SEED = 1


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--libraries",
    default=LIBRARIES,
    show_default=True,
    help="Installed packages whose docstrings to read.",
)
@click.option(
    "--size", default=2000, show_default=True, help="Number of training examples of a large task."
)
def command(out: Path, libraries: str, size: int) -> None:
    """Write the files of the demo's tasks to the folder OUT, completely or not at all."""
    if out.is_dir():
        click.echo(f"{out} exists already")
        return
    names = libraries.split(",")
    if len(set(names)) < 2:
        raise_invalid("--libraries", "two or more different packages", libraries)
    splits = split_descriptions(read_descriptions(names), random.Random(SEED))
    made = {
        (task, split): examples_of(
            task, splits[split], count, random.Random(f"{SEED} {task} {split}")
        )
        for task in TASKS
        for split, count in sizes(task, size).items()
    }
    with new_folder(out) as partial:
        for (task, split), examples in made.items():
            write(partial / task, split, examples)
    for split, descriptions in splits.items():
        subpackages = {description.part for description in descriptions}
        click.echo(f"{split}: {len(descriptions)} docstrings of {len(subpackages)} subpackages")


def examples_of(
    task: str, descriptions: Sequence[Description], count: int, draw: random.Random
) -> list[Example]:
    """Return a task's split in random order."""
    examples = TASKS[task](descriptions, count, draw)
    draw.shuffle(examples)
    return examples


def sizes(task: str, size: int) -> dict[str, int]:
    """Return the number of examples in each split of a task."""
    train = {"nearness": size // 4, "next_sentence": size // 4, "function_name": size // 10}.get(
        task, size
    )
    return {"train": train, "valid": max(size // 10, 8), "test": max(size // 20, 8)}


def split_descriptions(
    descriptions: Sequence[Description], draw: random.Random
) -> dict[str, list[Description]]:
    """Assign each library's subpackages to splits.

    Subpackages that fit into no other split become training data.
    """
    parts: defaultdict[str, defaultdict[str, list[Description]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for description in descriptions:
        parts[description.library][description.part].append(description)
    splits: dict[str, list[Description]] = {"train": [], "valid": [], "test": []}
    for of_library in parts.values():
        total = sum(map(len, of_library.values()))
        room = {split: share * total for split, share in SHARES.items()}
        for part in draw.sample(sorted(of_library), len(of_library)):
            size = len(of_library[part])
            split = next((split for split, rest in room.items() if size <= rest), "train")
            room[split] = room.get(split, 0) - size
            splits[split] += of_library[part]
    return splits


def drawn(
    pool: Sequence[Description], count: int, draw: random.Random, what: str
) -> list[Description]:
    """Draw `count` different descriptions in random order.

    Raises:
        UserError: there are fewer.
    """
    if len(pool) < count:
        number = f"{count} docstrings{what} for each split of `--size`"
        raise_invalid("--libraries", f"packages with {number}", f"{len(pool)} in one")
    return draw.sample(pool, count)


def another(pool: Sequence[Description], than: Description, draw: random.Random) -> Description:
    """Draw another description of the same library."""
    others = [
        description
        for description in pool
        if description.library == than.library and description is not than
    ]
    if not others:
        raise_invalid("--libraries", "packages with several docstrings in each split", than.library)
    return draw.choice(others)


def of_several(descriptions: Sequence[Description]) -> list[Description]:
    """Return the descriptions with several sentences."""
    return [description for description in descriptions if len(description.sentences) > 1]


def word_order(
    descriptions: Sequence[Description], count: int, draw: random.Random
) -> list[Example]:
    """Return examples with a sentence that may have two words exchanged, as in CoLA."""
    examples = []
    for number, description in enumerate(drawn(descriptions, count, draw, "")):
        sentence = draw.choice(description.sentences)
        is_written = number % 2 == 0
        shown = sentence if is_written else exchanged(sentence, draw)
        examples.append({"sentence": shown, "label": "written" if is_written else "exchanged"})
    return examples


def exchanged(sentence: str, draw: random.Random) -> str:
    """Exchange two different words.

    Keeps the first word, whose capital would reveal it, and the last.
    """
    words = sentence.split()
    inner = range(1, len(words) - 1)
    pairs = [
        (i, j)
        for i in inner
        for j in inner
        if i < j and words[i].strip(",;:") != words[j].strip(",;:")
    ]
    first, second = draw.choice(pairs)
    words[first], words[second] = words[second], words[first]
    return " ".join(words)


def same_text(
    descriptions: Sequence[Description], count: int, draw: random.Random
) -> list[Example]:
    """Return pairs of sentences from the same docstring or from two docstrings."""
    examples = []
    several = of_several(descriptions)
    for number, description in enumerate(drawn(several, count, draw, " of several sentences")):
        is_same = number % 2 == 0
        second = draw.randrange(1, len(description.sentences))
        other = draw.choice(another(several, description, draw).sentences[1:])
        examples.append({
            "sentence1": description.sentences[draw.randrange(second)],
            "sentence2": description.sentences[second] if is_same else other,
            "label": "same" if is_same else "different",
        })  # fmt: skip
    return examples


def nearness(descriptions: Sequence[Description], count: int, draw: random.Random) -> list[Example]:
    """Return pairs of docstrings with their nearness, from 0 to 3.

    0: in two libraries, 1: in one library, 2: in one subpackage, 3: in one file.
    """
    examples: list[Example] = []
    there: defaultdict[str, list[Description]] = defaultdict(list)
    for description in descriptions:
        for place in places(description):
            there[place].append(description)
    for number, first in enumerate(drawn(descriptions, count, draw, "")):
        wanted = number % 4
        near = there[places(first)[wanted - 1]] if wanted else descriptions
        tries = (
            d
            for d in draw.sample(near, min(len(near), 50))
            if d is not first and score(d, first) == wanted
        )
        second = next(tries, draw.choice(descriptions))
        texts = {"sentence1": first.sentences[0], "sentence2": second.sentences[0]}
        examples.append({**texts, "score": score(first, second)})
    return examples


def places(description: Description) -> tuple[str, str, str]:
    """Return a docstring's library, subpackage and file."""
    return description.library, description.part, description.file


def score(first: Description, second: Description) -> int:
    """Return the number of places that two docstrings share."""
    return sum(a == b for a, b in zip(places(first), places(second), strict=True))


def next_sentence(
    descriptions: Sequence[Description], count: int, draw: random.Random
) -> list[Example]:
    """Return examples that ask which of two sentences follows a third, as in COPA."""
    examples = []
    several = of_several(descriptions)
    for number, description in enumerate(drawn(several, count, draw, " of several sentences")):
        place, label = draw.randrange(1, len(description.sentences)), number % 2
        choices = [
            description.sentences[place],
            draw.choice(another(several, description, draw).sentences[1:]),
        ]
        first, second = reversed(choices) if label else choices
        texts = {"premise": description.sentences[place - 1], "choice1": first, "choice2": second}
        examples.append({**texts, "label": label})
    return examples


def function_name(
    descriptions: Sequence[Description], count: int, draw: random.Random
) -> list[Example]:
    """Return names with the first sentence of their own docstring or of another."""
    named = [description for description in descriptions if len(words_of(description.name)) > 1]
    examples = []
    for number, description in enumerate(drawn(named, count, draw, " of names of several words")):
        is_own = number % 2 == 0
        shown = description if is_own else another(named, description, draw)
        name = " ".join(words_of(description.name))
        examples.append(
            {"name": name, "sentence": shown.sentences[0], "label": "own" if is_own else "other"}
        )
    return examples


def words_of(name: str) -> list[str]:
    """Return the words of a Python name such as `train_test_split` or `BaseEstimator`."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


TASKS: dict[str, Callable[[Sequence[Description], int, random.Random], list[Example]]] = {
    "word_order": word_order,
    "same_text": same_text,
    "nearness": nearness,
    "next_sentence": next_sentence,
    "function_name": function_name,
}


def write(folder: Path, split: str, examples: list[Example]) -> None:
    """Write a split's file, JSON lines for rankings, else TSV.

    Test data has no labels.
    """
    folder.mkdir(exist_ok=True)
    shown = [{"index": number, **example} for number, example in enumerate(examples)]
    if split == "test":
        shown = [
            {key: value for key, value in example.items() if key not in ("label", "score")}
            for example in shown
        ]
    if "choice1" in shown[0]:
        path, lines = folder / f"{split}.jsonl", [json.dumps(example) for example in shown]
    else:
        header = "\t".join(shown[0])
        path, lines = (
            folder / f"{split}.tsv",
            [header, *("\t".join(map(str, e.values())) for e in shown)],
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        command(standalone_mode=False)
    except UserError as error:
        raise SystemExit(f"error: {error}") from error
