"""Folders that `mtmoe export-hf` writes: `transformers` loads them, and what was not trained has the same bytes."""

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.invoked import mtmoe
from tests.helpers.translators import CASES, lines, padded, write_folder

transformers = pytest.importorskip("transformers")


def bytes_of(tensor):
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("name", CASES)
def test_a_folder_comes_back_as_it_was(name, tmp_path):
    case = CASES[name]
    theirs = write_folder(tmp_path / "theirs", case)
    mtmoe("import-hf", tmp_path / "theirs", tmp_path / "model.pt")
    mtmoe("export-hf", tmp_path / "model.pt", tmp_path / "ours")
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "ours"))
    assert before.keys() == after.keys()
    for key, value in before.items():
        assert value.dtype == after[key].dtype and torch.equal(bytes_of(value), bytes_of(after[key])), key
    langs = {} if case.family == "marian" else dict(zip(("src_lang", "tgt_lang"), case.languages, strict=True))
    tokenizers = [transformers.AutoTokenizer.from_pretrained(tmp_path / each, **langs) for each in ("theirs", "ours")]
    assert type(tokenizers[0]) is type(tokenizers[1])
    code = f">>{case.languages[1]}<< " if "codes" in case.config else ""
    sentences = [code + line for line in (*lines()[20:30], "☃ ﬁ  漢")]
    sources, again = ([tokenizer(line).input_ids for line in sentences] for tokenizer in tokenizers)
    assert sources == again
    targets, again = ([each(text_target=line).input_ids for line in sentences] for each in tokenizers)
    assert targets == again
    pad = theirs.config.pad_token_id
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    inputs = padded(sources, pad)
    settings = {"num_beams": 3, "max_length": 12, "do_sample": False, "bad_words_ids": [[pad]]}
    if case.family != "marian":
        settings["forced_bos_token_id"] = targets[0][-1 if case.settings.get("legacy_behaviour") else 0]
    written = [
        each.generate(input_ids=inputs, attention_mask=inputs.ne(pad).long(), **settings) for each in (theirs, model)
    ]
    assert torch.equal(*written)
    texts, again = (each.batch_decode(written[0], skip_special_tokens=True) for each in tokenizers)
    assert texts == again
