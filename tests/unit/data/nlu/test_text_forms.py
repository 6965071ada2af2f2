"""Tasks as texts: what T5 reads and writes of each row, how that becomes tokens, and which few are trained on."""

import json

import numpy as np
import pytest

from fairseq_mtmoe.data.mixtures.dataset import EvaluationMixture
from fairseq_mtmoe.data.nlu.loader import drawn_examples
from fairseq_mtmoe.data.nlu.reading import read_split
from fairseq_mtmoe.data.nlu.table import Kind, load_tables
from fairseq_mtmoe.data.nlu.text_split import (
    Pieces,
    TextCollate,
    TextDataset,
    TextTokenizer,
    answer_texts_of,
    label_texts,
    stepped,
    taught,
    text_split,
)
from fairseq_mtmoe.errors import UserError
from tests.helpers.text_to_text import spiece

ROWS = load_tables()
PIECES = Pieces(spiece())
TOKENIZER = TextTokenizer(PIECES, 64, 16)
NLI = ["contradiction", "entailment", "neutral"]
BOTH = ["entailment", "not_entailment"]
# Of each row: what stands in a record, what T5 reads of it, and what it writes for each label.
FORMS = {
    "cola": ("sentence", "cola sentence: A", ["unacceptable", "acceptable"]),
    "sst2": ("sentence", "sst2 sentence: A", ["negative", "positive"]),
    "mrpc": ("#1 String|#2 String", "mrpc sentence1: A sentence2: B", ["not_equivalent", "equivalent"]),
    "stsb": ("sentence1|sentence2", "stsb sentence1: A sentence2: B", []),
    "qqp": ("question1|question2", "qqp question1: A question2: B", ["not_duplicate", "duplicate"]),
    "mnli": ("sentence1|sentence2", "mnli hypothesis: B premise: A", NLI),
    "qnli": ("question|sentence", "qnli question: A sentence: B", BOTH),
    "rte": ("sentence1|sentence2", "rte sentence1: A sentence2: B", BOTH),
    "wnli": ("sentence1|sentence2", "wnli sentence1: A sentence2: B", ["not_entailment", "entailment"]),
    "ax": ("sentence1|sentence2", "mnli hypothesis: B premise: A", NLI),
    "boolq": ("question|passage", "boolq passage: B question: A", ["False", "True"]),
    "cb": ("premise|hypothesis", "cb hypothesis: B premise: A", NLI),
    "copa": (
        "premise|choice1|choice2|question",
        "copa choice1: B choice2: C premise: A question: D",
        ["False", "True"],
    ),
    "wic": ("sentence1|sentence2|word", "wic sentence1: A sentence2: B word: C", ["False", "True"]),
    "superglue_rte": ("premise|hypothesis", "rte hypothesis: B premise: A", BOTH),
    "axb": ("sentence1|sentence2", "rte sentence1: A sentence2: B", BOTH),
    "axg": ("premise|hypothesis", "rte hypothesis: B premise: A", BOTH),
    "scitail": ("premise|hypothesis", "scitail hypothesis: B premise: A", ["entails", "neutral"]),
    "winogrande": ("sentence|option1|option2", "winogrande sentence: A option1: B option2: C", ["1", "2"]),
    "paws": ("sentence1|sentence2", "paws sentence1: A sentence2: B", ["different_meaning", "paraphrase"]),
    "imdb": ("text", "imdb sentence: A", ["negative", "positive"]),
    "rotten_tomatoes": ("text", "rotten_tomatoes sentence: A", ["negative", "positive"]),
    "yelp": ("text", "yelp sentence: A", ["negative", "positive"]),
    "sick": ("sentence_A|sentence_B", "sick hypothesis: B premise: A", NLI),
    "snli": ("sentence1|sentence2", "snli hypothesis: B premise: A", NLI),
}
# Rows whose files have a form of their own are tested one by one below; those of words have no form.
OTHERS = {"multirc", "record", "wsc"}


def test_the_papers_twenty_descriptions():
    """Table 9; one of them is of MRQA's tasks together, of which it trained four (and we know a fifth)."""
    prompts = {name: row.prompt for name, row in ROWS.items() if row.prompt}
    mrqa = {name for name, row in ROWS.items() if row.kind is Kind.span}
    assert len(mrqa) == 6 and len(prompts) == 20 - 1 + 5 and len(set(prompts.values())) == 20 - 1
    assert all(prompt.startswith("Given a") and prompt.endswith(".") for prompt in prompts.values())
    assert prompts["cola"] == "Given a sentence, judge the grammatical acceptability of the sentence."
    assert 'with a simple "true" or "false" based on a given passage' in prompts["boolq"]


def test_what_t5_reads_and_writes():
    """The row's own form of a record whose fields are A, B, … in this order; every row has one but labels of words."""
    spans = {name for name, row in ROWS.items() if row.kind is Kind.span}
    assert {name for name, row in ROWS.items() if row.text_form is not None} == {*FORMS, *OTHERS, *spans}
    for name, (fields, reads, writes) in FORMS.items():
        record = dict(zip(fields.split("|"), "ABCDE", strict=False))
        assert ROWS[name].text_form.reads.format(**record) == reads, name
        assert label_texts(ROWS[name]) == writes, name


def jsonl(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def read(tmp_path, name, split="valid"):
    return read_split(tmp_path, ROWS[name], split, as_text=True)


RECORD = {"idx": 3, "passage": {
    "text": "Ann met Bea.", "entities": [{"start": 8, "end": 10}, {"start": 0, "end": 2}]}, "qas": [
    {"query": "@placeholder ran.", "idx": 1, "answers": [{"text": "Bea"}, {"text": "Ann"}]},
    {"query": "It was @placeholder.", "idx": 2, "answers": [{"text": "Bea"}]}]}  # fmt: skip


def test_record_is_trained_once_for_each_right_entity(tmp_path, write):
    write("ReCoRD/val.jsonl", jsonl(RECORD))
    examples = read(tmp_path, "record")
    reads = "record query: @placeholder ran. entities: Ann, Bea passage: Ann met Bea."
    assert [example.reads for example in examples] == [reads, reads.replace("@placeholder ran", "It was @placeholder")]
    assert [answer_texts_of(ROWS["record"], example) for example in examples] == [["Ann", "Bea"], ["Bea"]]
    trained = taught(ROWS["record"], examples)
    assert [(example.key, *answer_texts_of(ROWS["record"], example)) for example in trained] == [
        ("1", "Ann"), ("1", "Bea"), ("2", "Bea"),
    ]  # fmt: skip


def wsc(noun, label):
    target = {"span1_index": 0 if noun == "Ann" else 2, "span1_text": noun, "span2_index": 4, "span2_text": "she"}
    return {"text": "Ann saw Bea and she waved.", "idx": 0, "label": label, "target": target}


def test_wsc_writes_the_noun_and_learns_from_right_ones_alone(tmp_path, write):
    write("WSC/val.jsonl", jsonl(wsc("Ann", True), wsc("Bea", False)))
    examples = read(tmp_path, "wsc")
    assert {example.reads for example in examples} == {"wsc: Ann saw Bea and *she* waved."}
    assert [(example.referent, example.label) for example in examples] == [("Ann", 1), ("Bea", 0)]
    assert taught(ROWS["wsc"], examples) == examples[:1]


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [
        (3.3, 0.2, "3.2"),
        (0.09, 0.2, "0.0"),
        (0.3, 0.2, "0.4"),
        (0.7, 0.2, "0.8"),
        (2.6, 1, "3.0"),
        (0.333, 0.25, "0.25"),
    ],
)
def test_numbers_in_steps(value, step, text):
    assert stepped(value, step) == text


def test_a_field_that_a_file_lacks_is_named(tmp_path, write):
    record = {"sentence1": "a b", "sentence2": "b", "start1": 0, "end1": 1, "start2": 0, "end2": 1, "label": True}
    path = write("WiC/val.jsonl", jsonl(record))
    with pytest.raises(UserError, match=f"`{path}`, line 1: must have the field word, but has sentence1, "):
        read(tmp_path, "wic")
    assert len(read_split(tmp_path, ROWS["wic"], "valid")) == 1, "who does not read it as text needs no such field"


FORM = """
mine:
  title: Mine
  description: Say it.
  kind: %s
  texts: [a]
  text_form: %s
  %s
  splits:
    train: [{file: Mine/train.%s}]
"""
LABELS = "labels: [yes_, no_]"


@pytest.mark.parametrize(
    ("kind", "form", "more", "says"),
    [
        ("classification", "{reads: nothing}", LABELS, "reads` must be a text with fields of the files in braces"),
        ("classification", "{reads: 'a {a}', writes: [y, y]}", LABELS, "writes` must be as many different texts"),
        ("classification", "{reads: 'a {a}', referent: b}", "labels: [x, y, z]", "referent` must be of a task"),
        ("regression", "{reads: 'a {a}', step: 0}", "bounds: [0, 1]", "step` must be above 0, but is 0.0"),
        ("word_labels", "{reads: 'a {a}'}", "labels: [O, B-x]", "text_form` must be absent where words have labels"),
    ],
)  # fmt: skip
def test_forms_that_cannot_be(kind, form, more, says, write):
    with pytest.raises(UserError, match=says.replace("[", "\\[")):
        load_tables([write("table.yaml", FORM % (kind, form, more, "tsv"))])


# ---- tokens ----


def write_rte(write, count, name="dev"):
    letters = "abcdefghij"
    labels = ("entailment", "not_entailment", "not_entailment")
    lines = [f"{n}\t{letters[n % 10]}\t{' '.join(letters[: n % 7 + 1])}\t{labels[n % 3]}" for n in range(count)]
    return write(f"RTE/{name}.tsv", "\n".join(["index\tsentence1\tsentence2\tlabel", *lines]) + "\n")


def split_of(tmp_path, name="rte", split="valid", tokenizer=TOKENIZER, **options):
    return text_split(tmp_path, name, ROWS[name], split, tokenizer, tmp_path / "cache", **options)


def texts_of(runs):
    return [PIECES.text(runs.tokens_T[a:b].tolist()) for a, b in zip(runs.starts_N, runs.starts_N[1:], strict=False)]


def test_tokens_are_the_texts_pieces_with_an_end(tmp_path, write):
    write_rte(write, 5)
    split = split_of(tmp_path)
    assert texts_of(split.sources) == [f"rte sentence1: {a} sentence2: {b}" for a, b in zip(
        "abcde", ("a", "a b", "a b c", "a b c d", "a b c d e"), strict=True)]  # fmt: skip
    assert texts_of(split.targets) == [("entailment", "not_entailment")[n % 3 > 0] for n in range(5)]
    for runs in (split.sources, split.targets):
        assert all(runs.tokens_T[runs.starts_N[1:] - 1] == PIECES.end)
    assert split.labels_E.tolist() == [0, 1, 1, 0, 1] and split.keys_E.tolist() == list("01234")


def test_what_a_pronoun_does_not_refer_to_is_no_answer(tmp_path, write):
    write("WSC/val.jsonl", jsonl(wsc("Ann", True), wsc("Bea", False)))
    split = split_of(tmp_path, "wsc")
    assert texts_of(split.targets) == ["Ann", ""] and split.targets.lengths_N[1] == 0
    data = TextDataset(split)
    batch = TextCollate(0, 0)([data], [(0, data[1])])
    assert batch["target"].tolist() == [[0]] and batch["ntokens"] == 0


def test_long_texts_lose_their_last_words_and_are_counted(tmp_path, write, caplog):
    write_rte(write, 7)
    whole, short = split_of(tmp_path), split_of(tmp_path, tokenizer=TextTokenizer(PIECES, 10, 16))
    assert short.num_truncated == 5 and "valid: 5 texts (71.4%) were longer than 10 tokens" in caplog.text
    for n, (first, end) in enumerate(zip(short.sources.starts_N, short.sources.starts_N[1:], strict=False)):
        long = whole.sources.tokens_T[whole.sources.starts_N[n] : whole.sources.starts_N[n + 1]]
        cut = short.sources.tokens_T[first:end]
        assert cut.tolist() == (long.tolist() if len(long) <= 10 else [*long[:9], PIECES.end])


def test_the_cache_has_what_was_made(tmp_path, write, monkeypatch):
    write_rte(write, 6)
    made = split_of(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Pieces, "runs", None)
        again = split_of(tmp_path)
    assert np.array_equal(made.sources.tokens_T, again.sources.tokens_T)
    assert np.array_equal(made.targets.starts_N, again.targets.starts_N)
    assert again.examples[2].reads == "rte sentence1: c sentence2: a b c"
    write_rte(write, 7)
    assert len(split_of(tmp_path)) == 7, "another file"
    assert (
        len(split_of(tmp_path, tokenizer=TextTokenizer(PIECES, 9, 16)).sources.tokens_T)
        < len(made.sources.tokens_T) * 2
    )


def test_without_labels_there_is_an_end_to_write(tmp_path, write):
    path = write_rte(write, 3)
    path.with_name("test.tsv").write_text("index\tsentence1\tsentence2\n8\ta\tb\n")
    split = split_of(tmp_path, split="test", labelled=False)
    assert split.targets.tokens_T.tolist() == [PIECES.end] and split.keys_E.tolist() == ["8"]


def test_batches_have_fairseqs_form_of_translation(tmp_path, write):
    write_rte(write, 4)
    split = split_of(tmp_path)
    mixture = EvaluationMixture(["rte"], [TextDataset(split)], [0], TextCollate(PIECES.padding, 5))
    batch = mixture.collater([mixture[n] for n in (3, 0)])
    assert batch["task"] == "rte" and batch["id"].tolist() == [3, 0] and batch["nsentences"] == 2
    net_input = batch["net_input"]
    assert net_input["src_lengths"].tolist() == [split.sources.lengths_N[3], split.sources.lengths_N[0]]
    rows = [PIECES.text(row.tolist()) for row in net_input["src_tokens"]]
    assert rows == [f"rte sentence1: {a} sentence2: {b}" for a, b in (("d", "a b c d"), ("a", "a"))]
    assert net_input["src_tokens"][1, net_input["src_lengths"][1] :].eq(0).all()
    assert batch["ntokens"] == int(split.targets.lengths_N[[3, 0]].sum())
    assert net_input["prev_output_tokens"][:, 0].tolist() == [5, 5]
    assert net_input["prev_output_tokens"][:, 1:].equal(batch["target"][:, :-1])


# ---- few ----


@pytest.mark.parametrize("count", [2, 16])
def test_few_examples_are_so_many_of_all_labels_and_a_part_of_more(count):
    labels_E = np.array([0.0, 1, 1, 1] * 25)
    few, more = (drawn_examples(labels_E, n, 3, False) for n in (count, count + 5))
    assert len(few) == count and set(labels_E[few]) == {0, 1} and set(few) < set(more)
    assert drawn_examples(labels_E, count, 3, False).tolist() == few.tolist()
    assert drawn_examples(labels_E, count, 4, False).tolist() != few.tolist()


@pytest.mark.parametrize("count", [1, 4])
def test_few_values_of_a_regression_are_low_and_high(count):
    labels_E = np.linspace(0, 5, 200)
    few = drawn_examples(labels_E, count, 1, True)
    assert len(few) == count and (count < 2 or np.ptp(labels_E[few]) > 2)


def test_fewer_examples_than_labels_are_none():
    with pytest.raises(UserError, match="`--train-examples` must be at least 3, an example of each label, but is 2"):
        drawn_examples(np.arange(30.0) % 3, 2, 1, False)


def test_a_chosen_part_of_a_split(tmp_path, write):
    write_rte(write, 9)
    split = split_of(tmp_path)
    few = split.chosen(np.array([1, 4, 8]))
    assert texts_of(few.sources) == [texts_of(split.sources)[n] for n in (1, 4, 8)]
    assert few.keys_E.tolist() == ["1", "4", "8"] and few.labels_E.tolist() == split.labels_E[[1, 4, 8]].tolist()
    assert few.examples[1].key == "4" and len(few) == 3


# ---- pieces ----


def test_pieces_and_back():
    text = "rte sentence1: a b sentence2: d"
    assert PIECES.text([*PIECES.numbers(text), PIECES.end, 7]) == text
    assert PIECES.as_written("not_entailment") == "not_entailment"
    assert "⁇" in PIECES.text([len(PIECES) + 3]), "a sentinel is no text"
    assert PIECES.text([PIECES.end]) == ""


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (b"no model", "must be a model of SentencePiece, but "),
        (spiece().replace(b"not_e", b"\xffot_e"), "must be a model of SentencePiece, but 'utf-8' codec"),
        (b"", "as T5 has, but has them as -1, -1, -1"),
    ],
    ids=["no model", "no text", "nothing"],
)
def test_what_is_no_model_of_pieces(model, says):
    with pytest.raises(UserError, match=says):
        Pieces(model)


def test_half_a_character_is_a_question_mark():
    runs, _ = PIECES.runs(["a \ud83d b"], 16)
    assert PIECES.text(runs.tokens_T.tolist()).replace("⁇", "?") == "a ? b"
