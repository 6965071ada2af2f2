"""Folders that `mtmoe export-hf` writes: `transformers` loads them, and what was not trained has the same bytes."""

import json

import pytest
import torch
from safetensors.torch import load_file

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.translation.data.vocabulary import VOCABULARY, Vocabulary
from tests.helpers.invoked import mtmoe
from tests.helpers.pretrained_translators import save_translator
from tests.helpers.refused import refused
from tests.helpers.translators import CASES, built, lines, padded, pieces, write_folder

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", CASES)
def test_a_folder_comes_back_as_it_was(name, tmp_path):
    case = CASES[name]
    theirs = write_folder(tmp_path / "theirs", case)
    mtmoe("import-hf", tmp_path / "theirs", tmp_path / "model.pt")
    mtmoe("export-hf", tmp_path / "model.pt", tmp_path / "ours")
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "ours"))
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert len({file.stat().st_mode for file in (tmp_path / "ours").iterdir()}) == 1
    settings = json.loads((tmp_path / "ours" / "tokenizer_config.json").read_text())
    assert "extra_special_tokens" not in settings  # a list of these is an error in version 4
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


@pytest.mark.parametrize(("name", "file"), [("nllb", "generation_config.json"), ("marian_multilingual", "config.json")])
def test_what_generate_does_by_default_comes_back(name, file, tmp_path):
    theirs = write_folder(tmp_path / "theirs", CASES[name])
    defaults = {
        "num_beams": 3, "length_penalty": 0.7, "early_stopping": True, "max_length": 30,
        "forced_bos_token_id": theirs.config.vocab_size - 7, "bad_words_ids": [[theirs.config.pad_token_id], [5, 9]],
    }  # fmt: skip
    place, folders = tmp_path / "theirs" / file, (tmp_path / "theirs", tmp_path / "ours")
    values = json.loads(place.read_text())
    (tmp_path / "theirs" / "generation_config.json").unlink()
    place.write_text(json.dumps({**values, **defaults}))
    mtmoe("import-hf", tmp_path / "theirs", tmp_path / "model.pt")
    mtmoe("export-hf", tmp_path / "model.pt", tmp_path / "ours")
    kept = file_io.load(str(tmp_path / "model.pt"))["task_state"]["generation"]
    assert kept["bad_words_ids"][0] == [1]  # fairseq's
    load = transformers.AutoModelForSeq2SeqLM.from_pretrained
    before, after = (load(folder).generation_config.to_diff_dict() for folder in folders)
    technical = ("_from_model_config", "use_cache", "output_attentions", "output_hidden_states")
    assert before.items() >= defaults.items()
    assert after == {key: value for key, value in before.items() if key not in technical}
    for value in {"num_beams": "5"}, {"forced_bos_token_id": 10**6}, []:
        (tmp_path / "theirs" / "generation_config.json").write_text(json.dumps(value))
        with refused("generation_config.json", first=False):
            mtmoe("import-hf", tmp_path / "theirs", tmp_path / "other.pt")


NORMS = ("encoder_normalize_before", "decoder_normalize_before")
FORMS = {"m2m_100": dict.fromkeys(NORMS, True), "marian": {"activation_fn": "gelu"}}


def trained(path, options, langs=("en", "de"), langtoks=("src", "tgt"), kind="unigram"):
    """The content of a file as of a run on a data directory, whose dictionaries have no language tokens."""
    save_translator(path, [pieces(kind)], langs, langtoks=langtoks, **{**dict.fromkeys(NORMS, False), **options})
    content = file_io.load(str(path))
    del content["task_state"][VOCABULARY][0]["symbols"][-len(langs) :]
    file_io.save(content, str(path))
    return content


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("langs", [("en", "de"), ("eng_Latn", "deu_Latn")], ids=" ".join)
def test_a_model_that_was_trained_from_nothing(kind, langs, tmp_path):
    pieces_kind = "bpe" if "_" in langs[0] else "unigram"
    content = trained(tmp_path / "checkpoint_best.pt", FORMS[kind], langs, kind=pieces_kind)
    mtmoe("export-hf", tmp_path / "checkpoint_best.pt", tmp_path / "ours")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    assert model.config.model_type == kind
    is_nllb = kind == "m2m_100" and "_" in langs[0]
    given = {"src_lang": langs[0]} if is_nllb else {}
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours", **given)
    code, forced = ("", langs[1]) if is_nllb else (f">>{langs[0]}<< ", f">>{langs[1]}<<")
    ours, dictionaries = built(content)
    processor = Vocabulary.of_state(content["task_state"]).source.processor
    source, target = (dictionaries[0].index(f"__{lang}__") for lang in langs)
    rows, their_rows = [], []
    for line in (*lines()[:9], "☃ unknown ﬁ"):
        pieces_of_line = processor.encode(line, out_type=str)
        rows.append([source, *map(dictionaries[0].index, pieces_of_line), 2])
        their_rows.append(tokenizer(code + line).input_ids)
        words = [dictionaries[0][index] for index in rows[-1][1:]]
        assert tokenizer.convert_ids_to_tokens(their_rows[-1][1:]) == words
    batch, inputs = padded(rows, 1), padded(their_rows, model.config.pad_token_id)
    decoder = torch.tensor([[2, target, 7, 9]]).expand(len(batch), 4)
    begin = [model.config.decoder_start_token_id, tokenizer.convert_tokens_to_ids(forced)]
    theirs_decoder = torch.tensor([begin + tokenizer.convert_tokens_to_ids([dictionaries[1][7], dictionaries[1][9]])])
    with torch.no_grad():
        found = ours(batch, batch.ne(1).sum(1), decoder)[0]
        wanted = model(input_ids=inputs, attention_mask=inputs.ne(model.config.pad_token_id).long(),
                       decoder_input_ids=theirs_decoder.expand(len(batch), 4)).logits  # fmt: skip
    own = [2, 3, *range(50, 90)]
    there = tokenizer.convert_tokens_to_ids([dictionaries[1][index] for index in own])
    torch.testing.assert_close(found[..., own], wanted[..., there], rtol=1e-5, atol=1e-5)
    assert found.shape == wanted.shape
    mtmoe("import-hf", tmp_path / "ours", tmp_path / "again.pt")
    again = file_io.load(str(tmp_path / "again.pt"))
    for name in ("langs", "langtoks", "encoder_langtok_last"):
        assert again["task_state"][name] == content["task_state"][name], name
    mtmoe("export-hf", tmp_path / "again.pt", tmp_path / "third")
    for name in {file.name for file in (tmp_path / "ours").iterdir()} - {"generation_config.json"}:
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "third" / name).read_bytes(), name


def test_ctranslate2_scores_as_a_marian_that_was_trained_from_nothing(tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    options = {**FORMS["marian"], "decoder_begins_with_pad": True}
    content = trained(tmp_path / "other.pt", options, langtoks=("tgt", None))
    assert "<pad>" in mtmoe("export-hf", tmp_path / "other.pt", tmp_path / "other")
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight"):
        content["model"][name][1] = 0  # as training leaves it
    file_io.save(content, str(tmp_path / "checkpoint_best.pt"))
    assert "<pad>" not in mtmoe("export-hf", tmp_path / "checkpoint_best.pt", tmp_path / "ours")
    ctranslate2.converters.TransformersConverter(str(tmp_path / "ours")).convert(str(tmp_path / "served"))
    served = ctranslate2.Translator(str(tmp_path / "served"), compute_type="float32", intra_threads=1)
    ours, (_, dictionary) = built(content)
    source, target = [7, 9, 11], [30, 20, 10]
    tokens, words = ([dictionary[index] for index in side] for side in (source, target))
    (found,) = served.score_batch([[">>de<<", *tokens, "</s>"]], [words])
    ids = torch.tensor([[dictionary.index("__de__"), *source, 2]])
    with torch.no_grad():
        logits = ours(ids, torch.tensor([5]), torch.tensor([[2, *target]]))[0][0]
    logits[:, 1] = -torch.inf  # which CTranslate2 leaves out
    wanted = logits.log_softmax(-1)[range(4), [*target, 2]]
    torch.testing.assert_close(torch.tensor(found.log_probs), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"layernorm_embedding": True}, "checkpoint_best.pt"),
        ({"decoder_normalize_before": True}, "checkpoint_best.pt"),
        ({"activation_fn": "tanh"}, "activation_function"),
        ({"no_decoder_final_norm": True, **FORMS["m2m_100"]}, "checkpoint_best.pt"),
        ({"share_all_embeddings": False, **FORMS["m2m_100"]}, "share_encoder_decoder_embeddings"),
        ({"output_bias": True, **FORMS["m2m_100"]}, "checkpoint_best.pt"),
        ({"sinusoids": "marian", **FORMS["m2m_100"]}, "checkpoint_best.pt"),
    ],
)
def test_forms_that_no_class_has_are_refused(changes, name, tmp_path):
    trained(tmp_path / "checkpoint_best.pt", changes)
    with refused(name, first=False):
        mtmoe("export-hf", tmp_path / "checkpoint_best.pt", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_sentences_vocabularies_and_states_that_no_folder_has_are_refused(tmp_path):
    path = tmp_path / "model.pt"
    content = trained(path, FORMS["m2m_100"])
    for name in ("lang_tok_replacing_bos_eos", "encoder_langtok_last"):
        file_io.save({**content, "task_state": {**content["task_state"], name: True}}, str(path))
        with refused(f"--{name.replace('_', '-')}", first=False):
            mtmoe("export-hf", path, tmp_path / "ours")
    file_io.save({**content, "model": None}, str(path))
    with refused("model.pt"):
        mtmoe("export-hf", path, tmp_path / "ours")
    models = [pieces("unigram", 270), pieces("unigram", 290, 1)]
    save_translator(path, models, joined=False, decoder_begins_with_pad=True, **dict.fromkeys(NORMS, False))
    with pytest.raises(UserError, match="equally many symbols in both"):
        mtmoe("export-hf", path, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(("name", "lang"), [("nllb", "luo"), ("mbart50", "lu_KE"), ("m2m", "luo")])
def test_a_language_that_was_added(name, lang, tmp_path):
    """Its code is the last symbol of ours, and has the same row in the tokenizer of the folder."""
    write_folder(tmp_path / "theirs", CASES[name])
    mtmoe("import-hf", tmp_path / "theirs", tmp_path / "model.pt")
    content = file_io.load(str(tmp_path / "model.pt"))
    state, settings = content["model"], content["task_state"]
    settings["langs"].append(lang)
    settings[VOCABULARY][0]["symbols"].append(f"[{lang}]" if name == "mbart50" else f"__{lang}__")
    wider = torch.cat([state["encoder.embed_tokens.weight"], torch.full((1, 16), 0.5)])
    names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight")
    content["model"] = {**state, **dict.fromkeys(names, wider)}
    file_io.save(content, str(tmp_path / "extended.pt"))
    mtmoe("export-hf", tmp_path / "extended.pt", tmp_path / "ours")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    is_marian = name != "nllb"  # the tokenizers of others know no more languages
    given = {} if is_marian else {"src_lang": lang, "tgt_lang": CASES[name].languages[1]}
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours", **given)
    code = f">>{lang}<<" if is_marian else lang
    line = next(line for line in lines() if line.endswith("!"))
    ids = tokenizer(f"{code} {line}" if is_marian else line).input_ids
    assert ids[0] == tokenizer.convert_tokens_to_ids(code)
    rows = model.get_input_embeddings().weight
    assert torch.equal(rows[ids[0]], wider[-1])
    assert tokenizer.decode(ids, skip_special_tokens=True) == line
    for old in CASES[name].languages:
        symbol = {"nllb": f"__{old}__", "mbart50": f"[{old}]", "m2m": f"__{old}__"}[name]
        own = 4 + settings[VOCABULARY][0]["symbols"].index(symbol)
        assert torch.equal(rows[tokenizer.convert_tokens_to_ids(f">>{old}<<" if is_marian else old)], wider[own])
