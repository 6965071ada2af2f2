"""Text of the languages of `untrained`, a data directory of it by a SentencePiece model, and models that babble."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
from fairseq.data import Dictionary

from tests.helpers import untrained
from tests.helpers.binarized import write_words
from tests.helpers.piece_models import trained_pieces
from tests.helpers.untrained import PAIRS, SYLLABLES, as_text

LANGS = ("en", "aa", "bb", "cc")
LIMIT = 40  # tokens that a model can read
SPARSE = (*untrained.SPARSE, "--max-source-positions", str(LIMIT))
PEMT = ("--task", "translation_heated", "--arch", "pemt_translation_tiny", "--pemt-stage", "source",
        "--lang-pairs", "en-aa", "--decoder-langtok", "--description", "bo da")  # fmt: skip


def texts(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [as_text(" ".join(draw.choices(SYLLABLES, k=draw.randint(4, 14)))) for _ in range(count)]


def make_text_data(folder: Path, lines: Sequence[str] = (), **options: object) -> Path:
    """A data directory with `test` sets and what models need of `train`; options are of `trained_pieces`."""
    folder.mkdir(exist_ok=True)
    model = trained_pieces(lines or texts(400, 0), "unigram", **{"size": 90, **options})
    (folder / "spm.model").write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    dictionary = Dictionary()
    for piece in map(processor.id_to_piece, range(len(processor))):
        if not processor.is_unknown(processor.piece_to_id(piece)) and piece not in ("<s>", "</s>"):
            dictionary.add_symbol(piece)
    for lang in LANGS:
        dictionary.save(str(folder / f"dict.{lang}.txt"))
    for seed, pair in enumerate(PAIRS):
        for split, count in (("train", 4), ("test", len(lines) or 15)):
            for side, lang in enumerate(pair.split("-")):
                text = lines if lines and split == "test" else texts(count, 100 + 2 * seed + side)
                _write(folder, f"{split}.{pair}.{lang}", text, processor, dictionary)
    return folder


def _write(folder: Path, name: str, lines: Sequence[str], processor: object, dictionary: Dictionary) -> None:
    (folder / "raw").mkdir(exist_ok=True)
    (folder / "raw" / name).write_text("".join(f"{line}\n" for line in lines))
    write_words(folder / name, (" ".join(processor.encode(line, out_type=str)) for line in lines), dictionary)


def sources(data: Path, pair: str) -> list[str]:
    return (data / "raw" / f"test.{pair}.{pair.split('-')[0]}").read_text().splitlines()


def by_fairseq(translator: Any, pair: str, size: int = 100) -> Any:
    """The translation of a `Translator`'s test set by fairseq's generator, with so many sentences in a batch."""
    data, texts = translator.pair_data(pair, "test"), {}
    generator = data.task.build_generator(translator.models, translator.decoding.generation)
    for start in range(0, len(data.fitting), size):
        sample = data.dataset.collater([data.dataset[number] for number in data.fitting[start : start + size]])
        outputs = data.task.inference_step(generator, translator.models, sample)
        for number, output in zip(sample["id"].tolist(), outputs, strict=True):
            texts[number] = data.text(output[0]["tokens"].tolist())
    return data.translation(texts)
