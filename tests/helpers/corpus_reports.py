"""Reports of `mtmoe prepare corpora`, of any size, with hostile lines among their samples."""

from typing import Any

from fairseq_mtmoe.corpora.blocks import BAD_REASONS
from fairseq_mtmoe.corpora.cleaning.cleaner import RULES

HOSTILE = [
    "<script>document.title='owned'</script>",
    "</p></li></ul></style></title><img src=x onerror=\"document.title='owned'\">",
    "\"' onmouseover=alert(1) x='",
    "{{ 7 * 7 }} {% include 'page.css' %} {# gone #}",
    "<!-- <svg/onload=alert(1)> ]]> &lt;b&gt; &#x3c;i&#x3e;",
    'javascript:alert(1) <a href="javascript:alert(1)">x</a> <style>*{display:none}</style>',
    "\u202eright to left\u2066 \x00 \x1b[31m \ud800 \ufeff \u2028",
    "مرحبا بالعالم می\u200cخواهم क्\u200dष",
]


def corpus(pair: str, role: str = "train", read: int = 1000) -> dict[str, Any]:
    """One corpus, of which each rule left as many pairs out as its number says."""
    train, text = role == "train", "ein Satz & noch einer <b>"
    dropped = {rule: number for number, rule in enumerate(RULES, 1)} if train else {}
    return {
        "pair": pair, "role": role, "files": [f"{pair}.{lang}.gz" for lang in pair.split("-")], "read": read,
        "bad": {"encoding": 3, "untranslated": 4} if train else {},
        "bad_samples": {"encoding": [[f"{pair}.gz:7", text]]} if train else {},
        "dropped": dropped,
        "samples": {rule: [[f"{pair}:1", text, text[::-1]]] for rule in dropped},
        "kept": read - sum(dropped.values()),
    }  # fmt: skip


def report(languages: int, corpora: int) -> dict[str, Any]:
    """English to so many languages, with so many training corpora dealt over them, and evaluation data for each."""
    langs = [f"{chr(97 + index // 26)}{chr(97 + index % 26)}" for index in range(languages)]
    found = {f"corpus-{number}": corpus(f"en-{langs[number % languages]}") for number in range(corpora)}
    for lang in langs:
        found |= {f"{role}-{lang}": corpus(f"en-{lang}", role, read=100) for role in ("valid", "test")}
    pairs = {}
    for number, lang in enumerate(langs):
        tokens = {split: {"en": {"tokens": 4000, "unknown": 0}, lang: {"tokens": 6000, "unknown": 3 * number}}
                  for split in ("train", "valid", "test")}  # fmt: skip
        pairs[f"en-{lang}"] = {"tier": ("high", "mid", "low")[number % 3],
                               "directions": [f"en-{lang}"], "train": 10 ** (number % 5 + 2) + number,
                               "valid": 100, "test": 100, "shards": 1 + number % 4, "tokens": tokens}  # fmt: skip
    return {
        "command": "corpora",
        "recipe": {"name": "tiny", "seed": 1, "directions": ["en-xx"], "filters": {"max_ratio": 3.0, "identify": None}},
        "meanings": {"bad": BAD_REASONS, "dropped": RULES},
        "corpora": found,
        "pairs": pairs,
        "vocabulary": {
            lang: {"pieces_per_word": 1.2 + number / 50, "characters_per_piece": 3.5, "unknown_share": 0.0001 * number,
                   "warning": "a word is cut into too many pieces" if number == 1 else None}
            for number, lang in enumerate(["en", *langs])
        },
    }  # fmt: skip


def hostile(texts: list[str] = HOSTILE) -> dict[str, Any]:
    """A report in which all that comes from a user's files is these texts: by default such that attack the page."""
    found = report(2, 2)
    for one in found["corpora"].values():
        one["files"] = texts
        one["samples"] = {key: [[text, text, text] for text in texts[:5]] for key in one["samples"]}
        one["bad_samples"] = {"encoding": [[text, text] for text in texts]}
    found["corpora"] = {(texts[1] if key == "corpus-0" else key): one for key, one in found["corpora"].items()}
    found["recipe"]["name"] = texts[1]
    found["recipe"]["vocabulary"] = {"model": texts[0], texts[2]: texts}
    found["vocabulary"]["en"]["warning"] = texts[1]
    return found
