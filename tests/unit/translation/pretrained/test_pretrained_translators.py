"""Pretrained translators compute, cut text and write what they do in Hugging Face's classes."""

import functools

import pytest
import torch
import torch.nn.functional as F

from fairseq_mtmoe import load_translator
from fairseq_mtmoe.translation.decode.decode import Row
from fairseq_mtmoe.translation.decode.text_scores import Given
from tests.helpers.decoding import decode
from tests.helpers.models import batch
from tests.helpers.translators import CASES, lines, ours_of_folder, padded, write_folder

transformers = pytest.importorskip("transformers")
every_form = pytest.mark.parametrize("name", CASES)
SENTENCES, TARGETS = lines()[:7], lines()[7:14]


class Pair:
    """A translator in Hugging Face's class, and ours."""

    def __init__(self, folder, name):
        self.case, self.folder = CASES[name], folder
        self.theirs = write_folder(folder / "theirs", self.case)
        self.ours = ours_of_folder(folder / "theirs", folder / "ours.pt")
        self.source, self.target = self.case.languages
        langs = {} if self.case.family == "marian" else {"src_lang": self.source, "tgt_lang": self.target}
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "theirs", **langs)

    def their_sources(self, sentences=SENTENCES):
        code = f">>{self.target}<< " if self.ours.layout.langtoks[0] == "tgt" else ""
        return [self.tokenizer(code + line).input_ids for line in sentences]

    def their_targets(self):
        found = [self.tokenizer(text_target=line).input_ids for line in TARGETS]
        # NLLB's old form has the target's code last, too, which no decoder begins with
        return [ids[-1:] + ids[:-1] for ids in found] if self.ours.layout.encoder_langtok_last else found

    def our_sources(self, sentences=SENTENCES):
        return [self.ours.source(line, self.source, self.target) for line in sentences]

    def our_targets(self):
        token = [self.ours.token(self.target, 1)] if self.ours.layout.langtoks[1] else []
        return [token + self.ours.ids(line, 1) + [2] for line in TARGETS]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return functools.cache(lambda name: Pair(tmp_path_factory.mktemp(name), name))


@every_form
def test_text_is_cut_as_by_their_tokenizer(name, pairs):
    pair = pairs(name)
    more = (*SENTENCES, "", "xy  z", " Ω 漢 unknown ☃☃ ﬁ", "line with　wide space")
    for ours, theirs in zip(pair.our_sources(more), pair.their_sources(more), strict=True):
        assert pair.ours.row(ours, 0) == theirs
    assert [pair.ours.row(ids, 1) for ids in pair.our_targets()] == pair.their_targets()


@every_form
def test_logits_and_loss_are_theirs(name, pairs):
    pair = pairs(name)
    pad = pair.theirs.config.pad_token_id
    sources, targets = padded(pair.their_sources(), pad), padded(pair.their_targets(), pad)
    labels = targets.masked_fill(targets == pad, -100)
    wanted = pair.theirs(input_ids=sources, attention_mask=sources.ne(pad).long(), labels=labels)
    ours, target = padded(pair.our_sources(), 1, left=True), padded(pair.our_targets(), 1)
    previous = torch.cat([torch.full((len(target), 1), 2), target[:, :-1]], 1)
    previous[:, 1:][target[:, :-1] == 2] = 1  # after the end
    with torch.no_grad():
        output = pair.ours.model(ours, ours.ne(1).sum(1), previous)
        logits = output[0]
    rows = pair.ours.row(range(logits.shape[-1]), 1)
    known = [(own, row) for own, row in enumerate(rows) if row >= 0]
    assert sorted(row for _, row in known) == list(range(wanted.logits.shape[-1]))
    own, theirs = (torch.tensor(each) for each in zip(*known, strict=True))
    is_word = target.ne(1)
    torch.testing.assert_close(logits[is_word][:, own], wanted.logits[is_word][:, theirs], rtol=1e-5, atol=1e-5)
    loss = F.nll_loss(logits.log_softmax(-1)[is_word], target[is_word])
    torch.testing.assert_close(loss, wanted.loss, rtol=1e-6, atol=1e-6)
    both = zip(pair.our_sources(), pair.our_targets(), strict=True)
    translator = load_translator(pair.folder / "ours.pt", cpu=True)
    direction = translator.codec.direction(*pair.case.languages)
    given = [Given(Row(number, direction, read), written) for number, (read, written) in enumerate(both)]
    given.sort(key=lambda one: -len(one.row.tokens))
    scores = translator.score_batch(given)
    assert sum(map(sum, scores)) == pytest.approx(-wanted.loss.item() * is_word.sum().item(), rel=1e-5)


@every_form
def test_words_that_come_one_by_one_are_read_as_all_together(name, pairs):
    """So that fairseq's searches write what the logits say."""
    decode(pairs(name).ours.model, batch(task_ids=False))
