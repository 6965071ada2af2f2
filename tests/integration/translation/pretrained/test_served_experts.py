"""A translator with fixed gates is a dense one for each language, pair or source: `mtmoe export-hf --to`."""

import http.client
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import pytest
import torch

from fairseq_mtmoe import load_translator
from fairseq_mtmoe.core.errors import UserError
from tests.helpers import untrained
from tests.helpers.commands import BIN, REPOSITORY
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
        pairs = json.loads((folder / "tokenizer_config.json").read_text())["fairseq_mtmoe"]["pairs"]
        assert f"{source}-{target}" in pairs
        assert {name} == {{"target": pair[3:], "source": pair[:2], "pair": pair}[kind] for pair in pairs}
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
    for choice in ([], ["--to", "aa"]):
        with refused("task.pt", "mtmoe translate", "--arch base_dense", "--expert-gates fixed"):
            mtmoe("export-hf", tmp_path / "task.pt", tmp_path / "out", *choice)
    untrained.save_model(text_data, tmp_path / "dense.pt", *untrained.STOCK)
    with refused("--to", "--expert-gates fixed", "dense.pt"):
        mtmoe("export-hf", tmp_path / "dense.pt", tmp_path / "out", "--to", "aa")
    (tmp_path / "there").mkdir()
    with refused("EXPORTED"):
        mtmoe("export-hf", model, tmp_path / "there", "--to", "aa")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def served(text_data, tmp_path_factory):
    """A model, and its folder of CTranslate2 from en to aa by the printed command."""
    pytest.importorskip("ctranslate2")
    folder = tmp_path_factory.mktemp("served")
    limits = ("--max-source-positions", "32", "--max-target-positions", "32")
    model = fixed(text_data, folder / "model.pt", *limits)
    said = mtmoe("export-hf", model, folder / "folder", "--to", "aa")
    conversion = said.splitlines()[-1].replace("int8", "float32")
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    subprocess.run(conversion, shell=True, executable="bash", cwd=folder, env=environment, check=True)
    return model, folder / "SERVED" / "aa"


def run_script(folder, text, source="en", target="aa"):
    """Return the example's script after it translated the text."""
    arguments = [sys.executable, SERVE / "translate.py", folder, "--from", source, "--to", target, "--beam=1"]
    return subprocess.run(arguments, input=text, capture_output=True, text=True, check=False)


@contextmanager
def running_server(folder):
    arguments = [sys.executable, SERVE / "server.py", folder, "--port=0", "--beam=1", "--inter-threads=2"]
    with subprocess.Popen(arguments, stdout=-1, stderr=-1, text=True) as server:
        try:
            yield server, server.stdout.readline().strip()
        finally:
            server.terminate()


def answer_to(address, request, **headers):
    """Return the status and the answer; a request that is not bytes is sent as JSON."""
    body = request if isinstance(request, bytes | None) else json.dumps(request).encode()
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    connection.request("POST", "/", body, headers)
    answer = connection.getresponse()
    return answer.status, json.load(answer)


def test_the_printed_command_converts_for_the_example_s_script_and_server(served):
    """They write what `mtmoe translate` writes."""
    model, folder = served
    first, second, *others = texts(6, 5)
    lines = [f"  {first[:20]}\u00ad  {second[:20]}", "", ". ".join([first] * 5), *others]
    wanted = load_translator(model, cpu=True).translate(lines, source="en", target="aa", beam=1, max_len_b=30)
    assert run_script(folder, "".join(f"{line}\n" for line in lines)).stdout.splitlines() == wanted
    with running_server(folder) as (_, address):
        assert answer_to(address, {"from": "en", "to": "aa", "lines": lines}) == (200, {"lines": wanted})
        assert answer_to(address, {"from": "en", "to": "aa", "lines": []}) == (200, {"lines": []})


def test_the_example_refuses_what_the_model_does_not_translate(served, tmp_path):
    model, folder = served
    text = "bo\n" + "bo " * 40
    with pytest.raises(UserError) as error:
        load_translator(model, cpu=True).translate(text.splitlines(), source="en", target="aa")
    too_long = str(error.value).replace("Line 2 of the text", "Line 2")
    assert "at most 30 tokens" in too_long
    refusals = [
        (run_script(folder, text), too_long),
        (run_script(folder, "bo", target="cc"), "a pair of the model (en-aa), but are 'en-cc'"),
        (run_script(folder, "bo", source="zz"), "a pair of the model (en-aa), but are 'zz-aa'"),
        (run_script(tmp_path, "bo"), f"`{tmp_path}` must be a folder of `mtmoe export-hf`"),
    ]
    for result, sentence in refusals:
        assert result.returncode == 1
        assert result.stderr.startswith("error: ")
        assert sentence in result.stderr
        assert result.stderr.count("\n") == 1
        assert not result.stdout


@pytest.mark.parametrize("folder", ["source.spm", "target.spm", "model.bin", "tokenizer_config.json"])
def test_the_example_refuses_a_folder_without_a_file(folder, served, tmp_path):
    shutil.copytree(served[1], tmp_path / "served")
    (tmp_path / "served" / folder).unlink()
    arguments = [sys.executable, SERVE / "server.py", tmp_path / "served", "--port=0"]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: `{tmp_path / 'served'}` must be a folder")
    assert result.stderr.count("\n") == 1


def test_the_server_answers_wrong_requests_with_a_sentence(served):
    right = {"from": "en", "to": "aa", "lines": ["bo"]}
    large = b" " * (2 << 20)
    wrong = [
        ({**right, "lines": "bo"}, 400, "`lines`"),
        ({**right, "lines": ["bo", None]}, 400, "`lines`"),
        ({**right, "lines": ["bo", "\ud800 bo"]}, 400, "Line 2 must be text in Unicode"),
        ({**right, "lines": ["bo", "bo " * 40]}, 400, "Line 2 must have sentences of at most 30 tokens"),
        ({**right, "from": "\ud800"}, 400, "a pair that is served (en-aa)"),
        ({**right, "to": ["aa"]}, 400, "a pair that is served (en-aa)"),
        ({"to": "aa", "lines": []}, 400, "`from`, `to` and `lines`"),
        ([], 400, "`from`, `to` and `lines`"),
        (b"{", 400, "JSON"),
        (b"[" * 100_000, 400, "JSON"),
        (large, 413, "at most 1048576 bytes, but has 2097152"),
    ]
    with running_server(served[1]) as (_, address):
        for request, status, sentence in wrong:
            found, answer = answer_to(address, request)
            assert (found, sentence in answer["error"]) == (status, True), answer
        for length in ("-1", "", "many"):
            assert answer_to(address, b"{}", **{"Content-Length": length})[0] == 411
        assert answer_to(address, b"2\r\n{}\r\n0\r\n\r\n", **{"Transfer-Encoding": "chunked"})[0] == 411
        assert answer_to(address, right)[0] == 200
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert json.load(answer) == {"pairs": ["en-aa"]}
        head = urllib.request.Request(address, method="HEAD")
        with urllib.request.urlopen(head, timeout=60) as answer:
            assert (answer.status, answer.read()) == (200, b"")


def test_a_terminated_server_finishes_its_requests_and_logs_them(served):
    body = json.dumps({"from": "en", "to": "aa", "lines": ["bo", "da"]}).encode()
    with running_server(served[1]) as (server, address):
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
        connection.putrequest("POST", "/")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body[:20])
        urllib.request.urlopen(address, timeout=60).close()  # connections are accepted in order
        server.terminate()
        connection.send(body[20:])
        answer = connection.getresponse()
        assert (answer.status, len(json.load(answer)["lines"])) == (200, 2)
        assert server.wait(60) == 0
        assert "en-aa: 2 lines, " in server.stderr.read()
