"""CTranslate2 writes with an exported folder what our search writes."""

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from tests.helpers.invoked import mtmoe
from tests.helpers.scheduled import rarely
from tests.helpers.translators import CASES, lines, ours_of_folder, padded, taught, write_folder

ctranslate2 = pytest.importorskip("ctranslate2")
transformers = pytest.importorskip("transformers")
# CTranslate2 reads one number of heads for both stacks.
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}


@pytest.mark.parametrize("name", rarely(["nllb", "mbart50", "m2m", "marian_multilingual"], "mbart50", "m2m"))
def test_ctranslate2_writes_the_same(name, tmp_path):
    case = CASES[name]._replace(config={**CASES[name].config, **HEADS})
    theirs = write_folder(tmp_path / "theirs", case)
    langs = {} if case.family == "marian" else dict(zip(("src_lang", "tgt_lang"), case.languages, strict=True))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs", **langs)
    code = f">>{case.languages[1]}<< " if case.family == "marian" else ""
    sentences = lines(200)
    sources = [tokenizer(code + line).input_ids for line in sentences]
    texts = [" ".join(line.split()[:2]) for line in sentences[20:27]]
    answers = [tokenizer(text_target=text).input_ids for text in texts]
    taught(theirs, [(ids, answers[at % 7]) for at, ids in enumerate(sources[:70])], updates=150)
    if case.family == "marian":  # its decoder begins with zeros, in all files that there are
        with torch.no_grad():
            theirs.model.shared.weight[-1] = 0
    theirs.save_pretrained(tmp_path / "theirs")
    ours = ours_of_folder(tmp_path / "theirs", tmp_path / "model.pt")
    mtmoe("export-hf", tmp_path / "model.pt", tmp_path / "ours")

    ctranslate2.converters.TransformersConverter(str(tmp_path / "ours")).convert(str(tmp_path / "served"))
    served = ctranslate2.Translator(str(tmp_path / "served"), compute_type="float32", intra_threads=1)
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours", **langs)
    batch = padded([ours.source(line, *case.languages) for line in sentences], 1, left=True)
    sample = {"net_input": {"src_tokens": batch, "src_lengths": batch.ne(1).sum(1)}}
    prefix, forced = None, None
    if case.family != "marian":
        prefix = torch.full((len(batch), 1), ours.token(case.languages[1], 1))
        forced = [exported.convert_ids_to_tokens(answers[0][:1])] * len(batch)
    for beam, least in ((1, 200), (5, 195)):  # searches may stop at other hypotheses
        generator = SequenceGenerator([ours.model], ours.dictionaries[1], beam_size=beam, max_len_b=30)
        found = generator.generate([ours.model], sample, prefix_tokens=prefix)
        written = [exported.convert_ids_to_tokens(ours.row(each[0]["tokens"].tolist(), 1)) for each in found]
        results = served.translate_batch(
            [exported.convert_ids_to_tokens(exported(code + line).input_ids) for line in sentences],
            target_prefix=forced, beam_size=beam, max_decoding_length=30, return_end_token=True,
            min_decoding_length=int(forced is None),
        )  # fmt: skip
        same = sum(each.hypotheses[0] == own for each, own in zip(results, written, strict=True))
        assert same >= least, f"beam {beam}"
