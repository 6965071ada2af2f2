"""Sentences for users have one style: what must be, where, and a full stop. Tests of behaviour need not repeat it."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "fairseq_mtmoe"
PLAIN = re.compile(r"please|invalid|illegal|error:|sorry|!|\?|\n", re.IGNORECASE)
VALUE = "{}"  # stands for what a sentence is filled with


def text_of(node: ast.expr) -> str | None:
    """A message as it is written, with `{}` for values; None where it is made elsewhere."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(VALUE if isinstance(part, ast.FormattedValue) else text_of(part) or VALUE for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return f"{text_of(left) or VALUE}{text_of(right) or VALUE}"
    return None


def calls_of(function: str, argument: int) -> list[tuple[str, str]]:
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
                text = text_of(node.args[argument])
                if text is not None:
                    found.append((f"{file.relative_to(PACKAGE)}:{node.lineno}", text))
    return found


def faults(text: str) -> list[str]:
    found = [] if re.match(r"[`A-Z{]", text) else ["it begins with no name of what is wrong"]
    found += [] if text.endswith((".", ".)", f"({VALUE})", VALUE)) else ["it has no full stop"]
    return found + [f"it has {word!r}" for word in PLAIN.findall(re.sub("`.*?`", "", text))]


def test_sentences_have_one_style():
    found = calls_of("UserError", 0)
    assert len(found) > 200
    assert {where: of for where, text in found if (of := faults(text))} == {}


def test_rules_continue_what_must_be():
    found = calls_of("raise_invalid", 1)
    assert len(found) > 100
    odd = re.compile(r"^(must|should|is|be) |\.$|" + PLAIN.pattern, re.IGNORECASE)
    assert [(where, text) for where, text in found if odd.search(text)] == []


@pytest.mark.parametrize("text", ["no such file", "`a` must be b", "Please give `a`.", "`a` is invalid."])
def test_another_style_is_found(text):
    assert faults(text)
