"""Translate lines with a folder of CTranslate2: no torch, fairseq or transformers.

    python translate.py SERVED/de --from en --to de < in.txt > out.txt

A line is treated as `mtmoe translate` treats it. docs/guides/deploy.md says how the folder is made.
"""

import argparse
import itertools
import json
import re
import sys
import textwrap
import unicodedata
from pathlib import Path

import ctranslate2
import sentencepiece

INVISIBLE = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\ufeff]")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？।؟])\s*")


class Translator:
    """A translator from or into several languages that `mtmoe export-hf` gave Marian's tokenizer.

    A folder, pair of languages or line that it does not support raises a ValueError with one
    sentence.
    """

    def __init__(self, folder, compute_type="default", **threads):
        try:
            settings = json.loads((folder / "tokenizer_config.json").read_text())
            ours = settings["fairseq_mtmoe"]
            self.pieces_of_source = sentencepiece.SentencePieceProcessor(str(folder / "source.spm"))
            self.pieces_of_target = sentencepiece.SentencePieceProcessor(str(folder / "target.spm"))
            self.model = ctranslate2.Translator(str(folder), compute_type=compute_type, **threads)
        except (OSError, KeyError, RuntimeError) as error:
            raise ValueError(
                f"`{folder}` must be a folder of `mtmoe export-hf` that ct2-transformers-converter "
                "converted with --copy_files source.spm target.spm tokenizer_config.json."
            ) from error
        self.room = settings["model_max_length"] - 2  # tokens beside the language and the end
        self.codes = set(settings["additional_special_tokens"])
        self.language_at_source, _ = ours["langtoks"]  # src, tgt or none
        all_pairs = itertools.permutations(ours["langs"], 2)
        self.pairs = ours.get("pairs") or [f"{source}-{target}" for source, target in all_pairs]

    def parts(self, line, number):
        """Return the pieces of a line, or of its sentences if it is too long.

        The list of an empty line is empty.
        """
        if LONE_SURROGATE.search(line):
            raise ValueError(
                f"Line {number} must be text in Unicode, but contains a lone surrogate."
            )
        text = " ".join(unicodedata.normalize("NFC", INVISIBLE.sub("", line)).split())
        pieces = self.pieces_of_source.encode(text, out_type=str)
        if len(pieces) <= self.room:
            return [pieces] if pieces else []
        sentences = [part for part in SENTENCE_END.split(text) if part]
        parts = self.pieces_of_source.encode(sentences, out_type=str)
        longest = max(map(len, parts))
        if longest > self.room:
            raise ValueError(
                f"Line {number} must have sentences of at most {self.room} tokens, but has one of "
                f"{longest}; break it up."
            )
        return parts

    def translate(self, lines, source, target, beam=5):
        """Return a translation of each line."""
        pair = f"{source}-{target}"
        if pair not in self.pairs:
            pairs = textwrap.shorten(", ".join(self.pairs), 300, placeholder=" …")
            raise ValueError(
                f"The languages must be a pair of the model ({pairs}), but are {pair!r}."
            )
        code = f">>{target}<<"
        first = {"src": [f">>{source}<<"], "tgt": [code]}.get(self.language_at_source, [])
        parts = [self.parts(line, number) for number, line in enumerate(lines, 1)]
        rows = [[*first, *pieces, "</s>"] for pieces_of_line in parts for pieces in pieces_of_line]
        results = iter(self.model.translate_batch(
            rows, target_prefix=[[code]] * len(rows), beam_size=beam, max_input_length=0,
            max_decoding_length=min(200, self.room), max_batch_size=2000, batch_type="tokens",
        ))  # fmt: skip
        translations = []
        for pieces_of_line in parts:
            written = [self.text(next(results).hypotheses[0][1:]) for _ in pieces_of_line]
            translations.append(" ".join(written))
        return translations

    def text(self, pieces):
        """Return the text of a translation, without codes of languages; ⁇ is an unknown piece."""
        words = [piece for piece in pieces if piece not in self.codes]
        return self.pieces_of_target.decode(words).replace(" ⁇ ", "⁇")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--from", dest="source", required=True)
    parser.add_argument("--to", dest="target", required=True)
    parser.add_argument("--beam", type=int, default=5)
    args = parser.parse_args()
    try:
        translations = Translator(args.folder).translate(
            list(sys.stdin), args.source, args.target, args.beam
        )
    except ValueError as error:
        sys.exit(f"error: {error}")
    sys.stdout.writelines(f"{translation}\n" for translation in translations)
