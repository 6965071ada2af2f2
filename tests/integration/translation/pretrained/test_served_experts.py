"""A translator with fixed gates is a dense one for each language, pair or source: `mtmoe export-hf --to`."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
import torch

from fairseq_mtmoe import load_translator
from tests.helpers import untrained
from tests.helpers.commands import REPOSITORY
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused
from tests.helpers.translated_text import SPARSE, texts

transformers = pytest.importorskip("transformers")
SERVE = REPOSITORY / "examples/translation/serve"
NORMS = ("--encoder-normalize-before", "--decoder-normalize-before")


def fixed(data, path, *options):
    """A file of a model whose experts differ much."""
    untrained.save_model(data, path, *SPARSE, *NORMS, "--expert-gates", "fixed", *options)
    state = torch.load(path, weights_only=False)
    generator = torch.Generator().manual_seed(1)
    for name, value in state["model"].items():
        if ".moe.experts." in name:
            value.add_(torch.randn(value.shape, generator=generator) * 0.1)
        if "embed_tokens" in name or "output_projection" in name:
            value[untrained.dictionary().unk()] = 0  # never chosen: libraries spell it otherwise
    torch.save(state, path)
    return path


# Options, and for each folder a direction that it translates
BY_TARGET = ((), {"aa": ("en", "aa"), "cc": ("en", "cc")})
KINDS = {
    "target": BY_TARGET,
    "pair": (("--task-ids", "pair"), {"en-aa": ("en", "aa"), "en-cc": ("en", "cc")}),
    "source": (("--task-ids", "source", "--lang-pairs", "en-aa,aa-bb"), {"en": ("en", "aa"), "aa": ("aa", "bb")}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_and_ctranslate2_write_what_mtmoe_translate_writes(kind, text_data, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    options, folders = KINDS[kind]
    model = fixed(text_data, tmp_path / "model.pt", *options)
    choice = ("--from", "all") if kind == "source" else ("--to", ",".join(target for _, target in folders.values()))
    said = mtmoe("export-hf", model, tmp_path / "served", *choice)
    assert {folder.name for folder in (tmp_path / "served").iterdir()} == set(folders)
    assert all(name in said for name in folders) and "MB in all" in said
    lines = texts(200, 3)
    translator = load_translator(model, cpu=True)
    written = []
    for name, (source, target) in folders.items():
        folder = tmp_path / "served" / name
        wanted = translator.translate(lines, source=source, target=target, beam=1, max_len_b=30)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        rows = [tokenizer(f">>{target}<< {line}").input_ids for line in lines]
        theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        inputs = tokenizer.pad({"input_ids": rows}, return_tensors="pt")
        found = theirs.generate(**inputs, num_beams=1, max_new_tokens=30)
        assert tokenizer.batch_decode(found, skip_special_tokens=True) == wanted
        ctranslate2.converters.TransformersConverter(str(folder)).convert(str(tmp_path / f"ct2-{name}"))
        server = ctranslate2.Translator(str(tmp_path / f"ct2-{name}"), compute_type="float32", intra_threads=1)
        results = server.translate_batch(
            [tokenizer.convert_ids_to_tokens(row) for row in rows], beam_size=1, max_decoding_length=30,
            target_prefix=[[f">>{target}<<"]] * len(rows),
        )  # fmt: skip
        ids = [tokenizer.convert_tokens_to_ids(result.hypotheses[0][1:]) for result in results]
        assert tokenizer.batch_decode(ids, skip_special_tokens=True) == wanted
        written.append(wanted)
    assert written[0] != written[1]


def test_common_weights_are_stored_once(text_data, tmp_path):
    model = fixed(text_data, tmp_path / "model.pt")
    mtmoe("export-hf", model, tmp_path / "all", "--to", "all")
    folders = sorted((tmp_path / "all").iterdir())
    assert [folder.name for folder in folders] == ["aa", "bb", "cc"]
    common = {os.stat(folder / "model-00001-of-00002.safetensors").st_ino for folder in folders}
    assert len(common) == 1
    mtmoe("import-hf", folders[0], tmp_path / "again.pt")
    mtmoe("reshard", model, tmp_path / "parts.pt", "--experts-per-file", 1)
    mtmoe("export-hf", tmp_path / "parts.pt", tmp_path / "same", "--to", "aa")
    own = "aa/model-00002-of-00002.safetensors"
    assert (tmp_path / "same" / own).read_bytes() == (tmp_path / "all" / own).read_bytes()
    parts = load_translator(tmp_path / "again.pt", cpu=True), load_translator(model, cpu=True)
    lines = texts(20, 5)
    first, second = (part.translate(lines, source="en", target="aa", beam=1, max_len_b=30) for part in parts)
    assert first == second


def test_wrong_choices_are_one_sentence(text_data, tmp_path):
    model = fixed(text_data, tmp_path / "model.pt")
    with refused("model.pt", "--to"):
        mtmoe("export-hf", model, tmp_path / "out")
    for choice in (["--to", "zz"], ["--to", ""], ["--to", "all,aa"], ["--to", "aa,aa"], ["--from", "en"]):
        with refused(choice[0]):
            mtmoe("export-hf", model, tmp_path / "out", *choice)
    by_source = fixed(text_data, tmp_path / "source.pt", "--task-ids", "source")
    with refused("--to", "--from all"):
        mtmoe("export-hf", by_source, tmp_path / "out", "--to", "aa")
    with refused("source.pt", "--from all"):
        mtmoe("export-hf", by_source, tmp_path / "out")
    untrained.save_model(text_data, tmp_path / "task.pt", *SPARSE, *NORMS)
    with refused("task.pt", "--expert-gates fixed"):
        mtmoe("export-hf", tmp_path / "task.pt", tmp_path / "out")
    with refused("--to", "--expert-gates fixed", "task.pt"):
        mtmoe("export-hf", tmp_path / "task.pt", tmp_path / "out", "--to", "aa")
    assert not (tmp_path / "out").exists()


def test_the_printed_command_converts_for_the_example_s_script_and_server(text_data, tmp_path):
    """They write what `mtmoe translate` writes."""
    pytest.importorskip("ctranslate2")
    model = fixed(text_data, tmp_path / "model.pt", "--max-source-positions", "32", "--max-target-positions", "32")
    said = mtmoe("export-hf", model, tmp_path / "folder", "--to", "aa")
    conversion = said.splitlines()[-1].replace("int8", "float32")
    subprocess.run(conversion, shell=True, executable="bash", cwd=tmp_path, check=True)
    served = tmp_path / "SERVED" / "aa"
    first, second, *others = texts(6, 5)
    lines = [f"  {first[:20]}\u00ad  {second[:20]}", "", ". ".join([first] * 5), *others]
    wanted = load_translator(model, cpu=True).translate(lines, source="en", target="aa", beam=1, max_len_b=30)

    arguments = [sys.executable, SERVE / "translate.py", served, "--from", "en", "--to", "aa", "--beam=1"]
    text = "".join(f"{line}\n" for line in lines)
    assert subprocess.run(arguments, input=text, stdout=-1, text=True, check=True).stdout.splitlines() == wanted

    arguments = [sys.executable, SERVE / "server.py", f"aa={served}", "--port=0", "--beam=1"]
    with subprocess.Popen(arguments, stdout=-1, text=True) as server:
        try:
            address = server.stdout.readline().strip()
            assert answer_to({"from": "en", "to": "aa", "lines": lines}, address) == {"lines": wanted}
            with pytest.raises(urllib.error.HTTPError, match="400"):
                answer_to({"from": "en", "to": "zz", "lines": lines}, address)
        finally:
            server.terminate()


def answer_to(request, address):
    with urllib.request.urlopen(address, json.dumps(request).encode(), timeout=60) as answer:
        return json.load(answer)
