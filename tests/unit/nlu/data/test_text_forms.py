"""Tasks as texts: what T5 reads and writes of each row, how that becomes tokens, and which few are trained on."""

import numpy as np
import pytest

from fairseq_mtmoe.multitask.mixtures.dataset import EvaluationMixture
from fairseq_mtmoe.nlu.data import text_split
from fairseq_mtmoe.nlu.data.loader import drawn_examples
from fairseq_mtmoe.nlu.data.reading import TaskSet, read_split
from fairseq_mtmoe.nlu.data.table import load_tables
from fairseq_mtmoe.nlu.data.text_split import Pieces, TextCollate, TextDataset, TextTokenizer, answer_texts_of, taught
from tests.helpers.refused import refused
from tests.helpers.text_to_text import spiece

ROWS = load_tables()
PIECES = Pieces(spiece())
TOKENIZER = TextTokenizer(PIECES, 64, 16)
LABELS, TRUTH = ["entailment", "not_entailment"], ["False", "True"]
# Of a row of each form: what stands in a record, what T5 reads of it, and what it writes for each label.
FORMS = {
    "cola": ("sentence", "cola sentence: A", ["unacceptable", "acceptable"]),
    "stsb": ("sentence1|sentence2", "stsb sentence1: A sentence2: B", []),
    "mrpc": ("#1 String|#2 String", "mrpc sentence1: A sentence2: B", ["not_equivalent", "equivalent"]),
    "mnli": ("sentence1|sentence2", "mnli hypothesis: B premise: A", ["contradiction", "entailment", "neutral"]),
    "boolq": ("question|passage", "boolq passage: B question: A", TRUTH),
    "copa": ("premise|choice1|choice2|question", "copa choice1: B choice2: C premise: A question: D", TRUTH),
    "wic": ("sentence1|sentence2|word", "wic sentence1: A sentence2: B word: C", TRUTH),
    "axg": ("premise|hypothesis", "rte hypothesis: B premise: A", LABELS),
}


def test_what_t5_reads_and_writes():
    assert [name for name, row in ROWS.items() if row.text_form is None] == ["wnut17"]
    for name, (fields, reads, writes) in FORMS.items():
        record = dict(zip(fields.split("|"), "ABCD", strict=False))
        assert ROWS[name].text_form.reads.format(**record) == reads, name
        assert text_split.label_texts(ROWS[name]) == writes, name


RECORD = {"idx": 3, "passage": {
    "text": "Ann met Bea.", "entities": [{"start": 8, "end": 10}, {"start": 0, "end": 2}]}, "qas": [
    {"query": "@placeholder ran.", "idx": 1, "answers": [{"text": "Bea"}, {"text": "Ann"}]},
    {"query": "It was @placeholder.", "idx": 2, "answers": [{"text": "Bea"}]}]}  # fmt: skip


def test_record_is_trained_once_for_each_right_entity(tmp_path, write):
    write("ReCoRD/val.jsonl", [RECORD])
    examples = read_split(TaskSet(tmp_path, "record", ROWS["record"], "valid"), as_text=True)
    reads = "record query: @placeholder ran. entities: Ann, Bea passage: Ann met Bea."
    assert [example.reads for example in examples] == [reads, reads.replace("@placeholder ran", "It was @placeholder")]
    assert [answer_texts_of(ROWS["record"], example) for example in examples] == [["Ann", "Bea"], ["Bea"]]
    trained = [(one.key, *answer_texts_of(ROWS["record"], one)) for one in taught(ROWS["record"], examples)]
    assert trained == [("1", "Ann"), ("1", "Bea"), ("2", "Bea")]


def wsc(number, noun, label):
    target = {"span1_index": number, "span1_text": noun, "span2_index": 4, "span2_text": "she"}
    return {"text": "Ann saw Bea and she waved.", "idx": 0, "label": label, "target": target}


def test_wsc_writes_the_noun_and_learns_from_right_ones_alone(tmp_path, write):
    write("WSC/val.jsonl", [wsc(0, "Ann", True), wsc(2, "Bea", False)])
    examples = split_of(tmp_path, "wsc").examples
    assert {example.reads for example in examples} == {"wsc: Ann saw Bea and *she* waved."}
    assert [(example.referent, example.label) for example in examples] == [("Ann", 1), ("Bea", 0)]
    assert taught(ROWS["wsc"], examples) == examples[:1]
    split = split_of(tmp_path, "wsc")
    assert texts_of(split.targets) == ["Ann", ""] and split.targets.lengths_N[1] == 0
    data = TextDataset(split)
    batch = TextCollate(0, 0)([data], [(0, data[1])])
    assert batch["target"].tolist() == [[0]] and batch["ntokens"] == 0


def test_numbers_in_steps():
    steps = {(3.3, 0.2): "3.2", (0.09, 0.2): "0.0", (0.7, 0.2): "0.8", (2.6, 1): "3.0", (0.333, 0.25): "0.25"}
    steps |= {(0.00032, 1e-5): "0.00032", (0.00032, 1.5e-4): "0.00030", (7, 1e6): "0.0"}
    assert {case: text_split.stepped(*case) for case in steps} == steps


@pytest.fixture
def rte(write):
    lines = [f"{n}\t{'abcdefg'[n]}\t{' '.join('abcdefg'[: n + 1])}\t{LABELS[n % 3 > 0]}" for n in range(7)]
    return write("RTE/dev.tsv", "\n".join(["index\tsentence1\tsentence2\tlabel", *lines]) + "\n")


def split_of(tmp_path, name="rte", split="valid", tokenizer=TOKENIZER, **options):
    task_set = TaskSet(tmp_path, name, ROWS[name], split)
    return text_split.text_split(task_set, tokenizer, tmp_path / "cache", **options)


def texts_of(runs):
    return [PIECES.text(runs[n].tolist()) for n in range(len(runs))]


@pytest.mark.usefixtures("rte")
def test_tokens_are_the_texts_pieces_with_an_end_and_some_can_be_chosen(tmp_path):
    right = [f"rte sentence1: {'abcdefg'[n]} sentence2: {' '.join('abcdefg'[: n + 1])}" for n in range(7)]
    for split in (split_of(tmp_path), split_of(tmp_path)):  # made, and from the cache
        assert texts_of(split.sources) == [example.reads for example in split.examples] == right
        assert texts_of(split.targets) == [LABELS[n % 3 > 0] for n in range(7)]
        for runs in (split.sources, split.targets):
            assert all(runs.tokens_T[runs.starts_N[1:] - 1] == PIECES.end)
        assert split.labels_E.tolist() == [0, 1, 1, 0, 1, 1, 0] and split.keys_E.tolist() == list("0123456")
    few = split.chosen(np.array([1, 3, 6]))
    assert texts_of(few.sources) == [right[n] for n in (1, 3, 6)] and len(few) == 3
    assert few.labels_E.tolist() == [1, 0, 0]
    assert few.keys_E.tolist() == [example.key for example in few.examples] == ["1", "3", "6"]


@pytest.mark.usefixtures("rte")
def test_long_texts_lose_their_last_words_and_are_counted(tmp_path, caplog):
    whole, short = split_of(tmp_path), split_of(tmp_path, tokenizer=TextTokenizer(PIECES, 10, 16))
    assert "truncated to 10 and 16 tokens: 5 texts and answers of 7 examples" in caplog.text
    for n in range(7):
        long, cut = whole.sources[n].tolist(), short.sources[n].tolist()
        assert cut == (long if len(long) <= 10 else [*long[:9], PIECES.end])


@pytest.mark.usefixtures("rte")
def test_batches_have_fairseqs_form_of_translation(tmp_path):
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


def test_few_examples_are_of_all_labels_or_values_and_a_part_of_more():
    count, labels_E = 16, np.array([0.0, 1, 1, 1] * 25)
    few, more = (drawn_examples(labels_E, n, 3, False) for n in (count, count + 5))
    assert len(few) == count and set(labels_E[few]) == {0, 1} and set(few) < set(more)
    assert drawn_examples(labels_E, count, 4, False).tolist() != few.tolist()
    with refused("--train-examples"):
        drawn_examples(labels_E, 1, 1, False)
    values_E = np.linspace(0, 5, 200)
    four = values_E[drawn_examples(values_E, 4, 1, True)]
    assert len(four) == 4 and np.ptp(four) > 2


def test_pieces_and_back_and_what_is_no_model_of_them():
    text = "rte sentence1: a b sentence2: d"
    assert PIECES.text([*PIECES.token_ids(text), PIECES.end, 7]) == text
    assert PIECES.as_written("not_entailment") == "not_entailment"
    assert "⁇" in PIECES.text([len(PIECES) + 3]), "a sentinel is no text"
    assert PIECES.text([PIECES.end]) == ""
    runs, _ = PIECES.runs(["a \ud83d b"], 16)
    assert PIECES.text(runs.tokens_T.tolist()).replace("⁇", "?") == "a ? b", "half a character"
    for model in (b"", spiece().replace(b"not_e", b"\xffot_e")):
        with refused("spiece.model"):
            Pieces(model)
