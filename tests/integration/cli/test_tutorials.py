"""Tutorials: a page's code blocks run as they stand, one after the other, on made data with tiny models."""

import gzip
import json
import random
import re
import shlex
import zipfile
from itertools import starmap

import pytest

from fairseq_mtmoe.nlu.data.table import Format, chosen_rows, load_tables
from fairseq_mtmoe.nlu.t5 import pretrained as t5_files
from tests.helpers import translators
from tests.helpers.benchmark import LETTERS, make_benchmark, make_encoder, make_unlabelled
from tests.helpers.commands import REPOSITORY
from tests.helpers.invoked import mtmoe
from tests.helpers.pretrained_translators import write_lines
from tests.helpers.raw_corpora import sentences, write_corpus
from tests.helpers.scheduled import rarely
from tests.helpers.scripts import run_text
from tests.helpers.text_to_text import pretrained_t5
from tests.helpers.translators import CASES, write_folder

DOCS = REPOSITORY / "docs"
REFERENCE = "\n## Paper and package\n"  # begins the part of a system's page that is looked up, not followed
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SERVES = "serves until it is ended; tests/integration/cli/test_translate.py asks its page"
INSTALLED = "the tests' environment has it"
FETCHED = "needs a network; the test writes the folder"
# Lines that are not run, and why.
SKIPPED = {
    "pip install '.[nlu]'": INSTALLED,
    "pip install '.[serve]'": INSTALLED,
    "hf download nreimers/MiniLM-L6-H384-uncased --local-dir FOLDER": FETCHED,
    "hf download google-t5/t5-base --local-dir T5_FOLDER": FETCHED,
    "hf download facebook/nllb-200-distilled-600M --local-dir nllb-200-distilled-600M": FETCHED,
    "make demo-glue": "tests/integration/cli/test_glue_demo.py runs its commands",
    "mtmoe translate RUN/checkpoint_best.pt --web": SERVES,
    "mtmoe translate nllb.pt RUN/checkpoint_best.pt --web": SERVES,
}

# ---- what makes commands small ----

# The sizes that a page's architecture has, and those that a test's pretrained model or computer has.
SIZES = {"_wmt15": "_tiny", "_minilm": "", "_base": ""}
FITTED = re.compile(r"(base_moe|base_dense|pemt_translation|mt_\w+|ca_mtl|t5|pemt_t5)(_wmt15|_minilm|_base)")
TRAINING = "--cpu --num-workers 0 --log-interval 1 --no-progress-bar"
OF_TASK = {
    "glue": "--max-positions 24", "text_to_text": "--max-source-positions 64 --max-target-positions 8",
    "translation_heated": "", "translation_multi_simple_epoch": "",
}  # fmt: skip
SMALL = {
    "fairseq-validate": "--cpu --num-workers 0", "evaluate": "--cpu --beam 1 --max-len-b 8",
    "translate": "--cpu --beam 1 --max-len-b 8", "corpora": "--workers 1",
}  # fmt: skip


def small(command, arguments):
    """Return the page's arguments, and behind them options with which the command takes seconds."""
    if command == "fairseq-train":
        arguments = [FITTED.sub(lambda found: found[1] + SIZES[found[2]], one) for one in arguments]
        task = arguments[arguments.index("--task") + 1]
        dense = "--dense-updates 1" if "--dense-updates" in arguments else ""
        tasks = "--glue-tasks sst2,mnli,rte" if "--glue-tasks all" in " ".join(arguments) else ""
        updates = f"--max-update {4 if '--continue-once' in arguments else 2}"
        return [*arguments, *shlex.split(f"{TRAINING} {OF_TASK[task]} {dense} {tasks} {updates}")]
    names = [command, *arguments[:2]]
    return [*arguments, *shlex.split(next((SMALL[name] for name in names if name in SMALL), ""))]


# ---- the page as a script ----


def steps_of(name):
    """Return the part of a page that is followed from its top to its end."""
    path = next(DOCS.glob(f"[gs]*/{name}.md"))  # guides, systems
    return path.read_text(encoding="utf-8").partition(REFERENCE)[0]


def script_of(text):
    """Return the page's blocks as one script: Python is piped to its interpreter, YAML to the file that it names."""
    return "".join(starmap(block_of, BLOCK.findall(text)))


def block_of(language, block):
    if language == "python":
        return f"python - <<'END'\n{block}END\n"
    if language == "yaml":
        return f"cat > {block.split()[1]} <<'END'\n{block}END\n"
    if language == "text":  # a command's output
        return ""
    assert language == "", f"no rule runs a block of {language}"
    # One seed shows that the loop runs.
    block = re.sub("for seed in .*;", "for seed in 1;", block)
    return "".join(f"{line}\n" for line in block.splitlines() if command_of(line) not in SKIPPED)


def command_of(line):
    return re.sub(r"\s+#.*", "", line).strip()


# ---- what pages ask for ----

CYRILLIC = str.maketrans("abdefgiklmnoprstu", "абдефгиклмнопрсту")
PREPARED = "mtmoe prepare corpora {raw} {data} --recipe folder"
TRAINED = (
    "fairseq-train {data} --user-dir fairseq_mtmoe --task translation_heated --lang-dict {data}/langs.txt"
    " --lang-pairs {data}/lang_pairs.txt --encoder-langtok {token} --decoder-langtok --arch base_dense_tiny"
    " --criterion label_smoothed_cross_entropy --optimizer adam --lr 0.001"
    " --lr-scheduler inverse_sqrt --warmup-updates 9 --max-tokens 2000 --no-epoch-checkpoints --save-dir {run}"
)


def write_texts(raw, *langs):
    """Write made-up parallel text of English and each of the languages, for each split."""
    for lang in langs:
        for split, size in {"train": 80, "valid": 5, "test": 5}.items():
            source, target = sentences(("en", lang, split), size), sentences((lang, split), size, lang)
            if lang in ("ru", "uk", "be"):
                target = [line.translate(CYRILLIC) for line in target]
            write_corpus(raw, f"{split}.en-{lang}", source, target, f"en-{lang}")


def write_tasks(folder, *names):
    """Write tasks of text and label as the table of tasks has them, in all splits; CoLA, COPA and such besides."""
    make_benchmark(folder, {"train": 60, "dev": 6})
    make_unlabelled(folder)
    draw = random.Random(5)
    for row in chosen_rows(load_tables(), names).values():
        for split, (source, *_) in row.splits.items():
            fields = source.columns or [row.key or "index", *row.texts, row.label]
            records = []
            for number in range(60 if split == "train" else 6):
                record = {name: " ".join(draw.choices(LETTERS, k=3)) for name in fields}
                records.append({**record, row.key: number, row.label: row.labels[number % len(row.labels)]})
            write_records(folder / source.file, fields, records, source)


def write_records(path, fields, records, source):
    path.parent.mkdir(parents=True, exist_ok=True)
    if source.format is Format.jsonl:
        write_lines(path, map(json.dumps, records))
        return
    rows = ["\t".join(str(record[name]) for name in fields) for record in records]
    write_lines(path, rows if source.columns else ["\t".join(fields), *rows])


def own_text(folder):
    raw = folder / "RAW"
    write_texts(raw, "de")
    (raw / "shop").mkdir()
    pairs = zip(sentences("shop de", 450, "de"), sentences("shop", 450), strict=True)
    with gzip.open(raw / "shop" / "shop.tsv.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{target}\t{source}\n" for target, source in pairs)
    with zipfile.ZipFile(raw / "manuals.zip", "w") as archive:
        for target in ("de", "fr", "cs"):
            for lang in ("en", target):
                archive.writestr(f"{target}/manual.{lang}", "\n".join(sentences((lang, target), 450, lang)))


def write_nllb(folder, *codes):
    """Write a tiny NLLB with these languages, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translators, "NLLB_CODES", (*translators.NLLB_CODES, *codes))
        write_folder(folder / "nllb-200-distilled-600M", CASES["nllb"])


def fine_tune(folder):
    write_texts(folder / "MANUALS", "de")
    write_texts(folder / "RAW", "de")
    for name, size in {"general": 80, "manuals": 80, "real": 80, "mono": 80, "valid": 5, "test": 5}.items():
        for lang in ("en", "de"):
            write_lines(folder / "RAW" / f"{name}.{lang}", sentences((lang, name), size, lang))
    (folder / "RAW" / "mono.en").unlink()
    write_texts(folder / "SW_RAW", "sw")
    write_nllb(folder, "swh_Latn")
    imported = "mtmoe import-hf nllb-200-distilled-600M/ nllb.pt"
    return imported, PREPARED.format(raw="RAW", data="DATA"), "mtmoe suggest DATA > train.sh", "bash train.sh"


def sparse_translation(folder):
    write_texts(folder / "RAW", "de", "fr")
    return PREPARED.format(raw="RAW", data="DATA"), TRAINED.format(data="DATA", token="tgt", run="dense")


def new_language(folder):
    for raw, lang in ("RAW", "nyn"), ("SW_RAW", "sw"), ("DA_RAW", "da"), ("SV_RAW", "sv"):
        write_texts(folder / raw, lang)
    write_nllb(folder, "lug_Latn", "swh_Latn")
    trained = TRAINED.format(data="OLD", token="src", run="OWN")
    return PREPARED.format(
        raw="DA_RAW", data="OLD"
    ), f"{trained} --encoder-normalize-before --decoder-normalize-before --encoder-embed-dim 128"


def mt_tag(folder):
    write_tasks(folder / "GLUE_DIR", "sst2", "mnli", "sick")
    (folder / "GLUE_DIR" / "reviews").mkdir()
    for split in ("train", "dev"):
        records = [{"text": letter, "stars": stars} for letter in LETTERS for stars in ("bad", "good")]
        write_lines(folder / "GLUE_DIR" / "reviews" / f"{split}.jsonl", map(json.dumps, records))
    make_encoder(folder / "encoder.pt")
    mtmoe("export-hf", folder / "encoder.pt", folder / "FOLDER")
    (folder / "encoder.pt").unlink()


def ca_mtl(folder):
    write_tasks(folder / "GLUE_DIR", "sst2", "mnli", "cb", "scitail")
    make_encoder(folder / "encoder.pt")


def pemt(folder):
    write_tasks(folder / "GLUE_DIR", "mnli", "qnli")
    t5_files.write_folder(pretrained_t5(), folder / "T5_FOLDER")
    make_encoder(folder / "bert.pt")
    mtmoe("export-hf", folder / "bert.pt", folder / "BERT_FOLDER")
    (folder / "bert.pt").unlink()
    write_texts(folder / "RAW", "ru", "uk", "be")
    trained = TRAINED.format(data="DATA", token="tgt", run="TRANSLATOR")
    return PREPARED.format(raw="RAW", data="DATA"), trained, "cp TRANSLATOR/checkpoint_last.pt translator.pt"


PAGES = {page.__name__: page for page in (own_text, fine_tune, sparse_translation, new_language, mt_tag, ca_mtl, pemt)}
# Each takes a minute; `test_commands_in_texts.py` checks their commands and options always.
RARE = ("own_text", "fine_tune", "new_language", "mt_tag", "ca_mtl", "pemt")


@pytest.mark.parametrize("name", rarely(PAGES, *RARE))
def test_a_tutorial_runs_as_it_stands(name, tmp_path):
    for folder in ("fairseq_mtmoe", "examples"):
        (tmp_path / folder).symlink_to(REPOSITORY / folder)
    write_lines(tmp_path / "in.txt", sentences("in", 3))
    before = PAGES[name](tmp_path) or ()
    run_text("\n".join(["set -euxo pipefail", *before, script_of(steps_of(name))]), tmp_path, small)


def test_skipped_lines_are_there():
    blocks = [block for name in PAGES for _, block in BLOCK.findall(steps_of(name))]
    lines = {command_of(line) for block in blocks for line in block.splitlines()}
    assert set(SKIPPED) - lines == set()
