"""A data directory of three languages in SentencePiece's spelling, and an untrained model of stock fairseq for it."""

import random
from pathlib import Path

import torch
from fairseq.data import Dictionary

from tests.helpers.benchmark import save_before_training
from tests.helpers.binarized import write_words

SYLLABLES = [mark + consonant + vowel for mark in ("▁", "") for consonant in "bdfgklmn" for vowel in "aeiou"]
PAIRS = {"en-aa": 64, "en-bb": 12, "en-cc": 4}  # training sentences: a high, a mid and a low tier
TEST_SIZES = {"en-aa": 10, "en-bb": 11, "en-cc": 12}


def dictionary() -> Dictionary:
    found = Dictionary()
    for syllable in SYLLABLES:
        found.add_symbol(syllable)
    return found


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(["▁bo", *draw.choices(SYLLABLES, k=draw.randint(3, 8))]) for _ in range(count)]


def write_split(folder: Path, split: str, pair: str, sources: list[str], targets: list[str]) -> None:
    for lang, lines in zip(pair.split("-"), (sources, targets), strict=True):
        write_words(folder / f"{split}.{pair}.{lang}", lines, dictionary())


def as_text(line: str) -> str:
    return line.replace(" ", "").replace("▁", " ").strip()


def write_raw(folder: Path, pair: str, targets: list[str]) -> list[str]:
    """Put the text of the pair's test references into `raw/`, as `mtmoe prepare` does; returns its lines."""
    lines = [as_text(target) for target in targets]
    (folder / "raw").mkdir(exist_ok=True)
    (folder / "raw" / f"test.{pair}.{pair.split('-')[1]}").write_text("".join(f"{line}\n" for line in lines))
    return lines


def make_data(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for lang in ("en", "aa", "bb", "cc"):
        dictionary().save(str(folder / f"dict.{lang}.txt"))
    for seed, (pair, size) in enumerate(PAIRS.items()):
        write_split(folder, "train", pair, sentences(size, seed), sentences(size, 10 + seed))
        count = TEST_SIZES[pair]
        write_split(folder, "test", pair, sentences(count, 100 + seed), sentences(count, 110 + seed))
    return folder


_MULTILINGUAL = ("--lang-pairs", ",".join(PAIRS), "--decoder-langtok", "--encoder-langtok", "tgt",
                 "--max-source-positions", "12")  # fmt: skip
STOCK = ("--task", "translation_multi_simple_epoch", "--arch", "transformer_tiny", *_MULTILINGUAL)
SPARSE = ("--task", "translation_heated", "--arch", "base_moe_tiny", "--num-experts", "4", "--expert-gates", "task",
          *_MULTILINGUAL)  # fmt: skip
ONE_PAIR = ("--task", "translation", "--arch", "transformer_tiny", "-s", "en", "-t", "bb", "--eval-bleu")


def save_model(data: Path, path: Path, *options: str, seed: int = 1) -> None:
    """A checkpoint of a model that babbles. By default stock fairseq's."""
    save_before_training([data, *(options or STOCK)], path, babble, seed)


@torch.no_grad()
def babble(model: torch.nn.Module) -> None:
    """Let a translator hardly ever end a sentence by itself."""
    # The last norm decides which word follows which: else a model with tied embeddings repeats its input.
    norm = [module for module in model.decoder.modules() if isinstance(module, torch.nn.LayerNorm)][-1]
    norm.weight.copy_(3 * torch.randn_like(norm.weight))
    model.decoder.output_projection.weight[dictionary().eos()] = 0


def imitate(data: Path, checkpoint: Path, pair: str) -> list[str]:
    """Replace the pair's test set by one that the model does well on: its own translations, partly changed."""
    from fairseq_mtmoe.translation.decode.decode import Decoding
    from fairseq_mtmoe.translation.decode.translator import Translator

    sources = sentences(13, 1)
    write_split(data, "test", pair, sources, sources)
    translator = Translator(str(data), [str(checkpoint)], Decoding(max_len_b=20), post_process="none")
    translated = enumerate(next(translator.translations([pair], "test")).hypotheses)
    targets = [target.rsplit(" ", 1 + index)[0] for index, target in translated]
    targets[3] = targets[3].replace(" ", " strange ", 1)
    targets.append("▁ba")
    write_split(data, "test", pair, [*sources, "▁ba " * 20], targets)
    return targets


def babble_unknowns(checkpoint: Path, word: str, path: Path) -> None:
    """Write to `path` a model that has an unknown word wherever the one in `checkpoint` has `word`."""
    state = torch.load(checkpoint)
    words, unknown = dictionary(), dictionary().unk()
    for key in ("decoder.output_projection.weight", "decoder.embed_tokens.weight"):
        weight = state["model"][key]
        weight[[unknown, words.index(word)]] = weight[[words.index(word), unknown]].clone()
    torch.save(state, path)
