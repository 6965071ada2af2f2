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
    text = "ein Satz & noch einer <b>"
    dropped = {rule: number for number, rule in enumerate(RULES, 1)} if role == "train" else {}
    return {
        "pair": pair, "role": role, "files": [f"{pair}.gz"], "read": read, "kept": read - sum(dropped.values()),
        "bad": dict.fromkeys(("encoding", "untranslated"), 3) if dropped else {},
        "bad_samples": {"encoding": [[f"{pair}.gz:7", text]]} if dropped else {},
        "dropped": dropped, "samples": {rule: [[f"{pair}:1", text, text[::-1]]] for rule in dropped},
    }  # fmt: skip


def report() -> dict[str, Any]:
    """English to three languages, each with a training corpus and evaluation data."""
    corpora, pairs, vocabulary = {}, {}, {}
    for number, lang in enumerate(("aa", "ab", "ac")):
        pair = f"en-{lang}"
        corpora[f"corpus-{number}"] = corpus(pair)
        corpora |= {f"{role}-{lang}": corpus(pair, role, read=100) for role in ("valid", "test")}
        tokens = {"test": {"en": {"tokens": 4000, "unknown": 0}, lang: {"tokens": 6000, "unknown": 3 * number}}}
        tier = ("high", "mid", "low")[number]
        pairs[pair] = {"tier": tier, "directions": [pair], "train": 10 ** (number + 2) + number, "valid": 100,
                       "test": 100, "shards": 1 + number, "tokens": tokens}  # fmt: skip
        vocabulary[lang] = {"pieces_per_word": 1.2 + number / 50, "characters_per_piece": 3.5,
                            "unknown_share": 0.0001 * number, "warning": None}  # fmt: skip
    vocabulary["aa"]["warning"] = "a word is cut into too many pieces"
    recipe = {"name": "tiny", "seed": 1, "directions": ["en-xx"], "filters": {"max_ratio": 3.0, "identify": None}}
    meanings = {"bad": BAD_REASONS, "dropped": RULES}
    figures = {"corpora": corpora, "pairs": pairs, "symbols": 8000, "vocabulary": vocabulary}
    return {"recipe": recipe, "meanings": meanings, **figures}


def hostile(texts: list[str] = HOSTILE) -> dict[str, Any]:
    """A report in which all that comes from a user's files is these texts: by default such that attack the page."""
    found = report()
    for one in found["corpora"].values():
        one["files"] = texts
        one["samples"] = {key: [[text, text, text] for text in texts[:5]] for key in one["samples"]}
        one["bad_samples"] = {"encoding": [[text, text] for text in texts]}
    found["corpora"][texts[1]] = found["corpora"].pop("corpus-0")
    found["recipe"].update(name=texts[1], vocabulary={"model": texts[0], texts[2]: texts})
    found["vocabulary"]["aa"]["warning"] = texts[1]
    return found
