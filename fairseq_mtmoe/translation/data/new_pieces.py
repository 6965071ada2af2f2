"""New pieces of a SentencePiece model for a language.

They are its letters, and merges of pieces that are often neighbours.

New pieces are appended with scores below all old ones, so that text without them is split as
before:

- BPE repeatedly merges the neighbours with the highest score. All old merges are made before the
  first new one. New merges continue BPE's training ("Neural Machine Translation of Rare Words with
  Subword Units", Sennrich et al. 2016) from the old segmentation: each joins two existing pieces.
- A unigram model takes the segmentation with the highest sum of scores. Its new pieces are found in
  the same way, except pieces that no segmentation would use because their parts score higher.
"""

import heapq
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import ne

import sentencepiece

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.sentencepieces import ModelProto, parse_model, serialized_pieces

SPACE = "▁"  # begins a word
LEAST_LETTERS = 3  # occurrences of a new letter: rarer ones are typos or emoji
LEAST_JOINS = 10  # occurrences of a new merge: an embedding needs examples to learn from
LONGEST = 16  # characters in a piece, as in SentencePiece's training
# Pieces; a longer word is counted in parts, because a merge in a word takes time for its length
LONGEST_WORD = 1024
_UNWRITTEN = ("Cc", "Cs", "Cn")  # control characters, surrogates and unassigned code points
UNIGRAM = 1
BPE = 2

Processor = sentencepiece.SentencePieceProcessor
Parts = tuple[str, ...]
Pair = tuple[str, str]


@dataclass(frozen=True)
class Grown:
    """A serialized SentencePiece model with more pieces.

    parts: pieces that the dictionary lacks, in order, each with the dictionary's symbols that it
    was split into. A letter has the symbols of its decomposition, if any.
    """

    model: bytes
    parts: dict[str, Parts]


def model_type(model: bytes) -> int:
    """Return the kind of a serialized model (UserError: it is damaged).

    It is `UNIGRAM`, `BPE` or another.
    """
    return int(parse_model(model).trainer_spec.model_type)


def plain_pieces(model: bytes) -> list[str]:
    """Return a serialized model's normal pieces.

    Control symbols, bytes and user-defined symbols are left out.
    """
    normal = ModelProto.SentencePiece.NORMAL
    return [piece.piece for piece in parse_model(model).pieces if piece.type == normal]


def grow(
    model: bytes, processor: Processor, symbols: Iterable[str], text: Iterable[str], most: int
) -> Grown:
    """Add a text's letters and at most `most` merges to a SentencePiece model.

    model, processor: the serialized model and its processor.
    symbols: the symbols of the dictionary.

    Raises:
        UserError: the model is neither BPE nor unigram.
    """
    kind = model_type(model)
    if kind not in (UNIGRAM, BPE):
        raise UserError(
            "The vocabulary's `SentencePiece model` must be BPE or unigram to add pieces to it."
        )
    symbols_before = set(symbols)
    scores = _scores(processor)
    words = _words(processor, text, scores)
    counts = Counter[str]()
    for word, count in words.items():
        for piece in word:
            counts[piece] += count
    parts: dict[str, Parts] = {}
    for piece, count in counts.most_common():
        is_letter = piece not in scores and unicodedata.category(piece[0]) not in _UNWRITTEN
        if is_letter and count >= LEAST_LETTERS:
            decomposed = unicodedata.normalize("NFKD", piece)
            parts[piece] = tuple(filter(symbols_before.__contains__, decomposed))
    letters = list(parts)
    for piece, count in counts.most_common():
        if piece in scores and piece not in symbols_before and count >= LEAST_JOINS:
            parts[piece] = tuple(filter(symbols_before.__contains__, piece))
    most = min(most, sum(map(len, words)) + 1)  # there are no more merges than neighbours
    step = 1.0 if kind == BPE else 1 / (1 + len(letters) + most)
    places = range(1, 1 + len(letters) + most)
    below = [min(scores.values()) - step * place for place in places]
    new = dict(zip(letters, below, strict=False))
    all_scores = {**scores, **new}
    usable = filter(_is_of_letters, all_scores.keys() & {*symbols_before, *parts})
    joining = _Joining(words, {part: all_scores[part] for part in usable}, parts)
    banned = scores.keys() | new.keys()
    for score in below[len(letters) :]:
        merged = joining.next_piece(banned, score if kind == UNIGRAM else None)
        if merged is None:
            break
        new[merged] = score
    all_parts = {piece: joining.parts[piece] for piece in {**parts, **new}}
    return Grown(model + serialized_pieces(new), all_parts)


def _scores(processor: Processor) -> dict[str, float]:
    """Return the scores of pieces that stand for text."""
    scores = {}
    for i in range(processor.get_piece_size()):
        if not (processor.is_control(i) or processor.is_unknown(i) or processor.is_byte(i)):
            scores[processor.id_to_piece(i)] = processor.get_score(i)
    return scores


def _words(
    processor: Processor, text: Iterable[str], known_pieces: Mapping[str, object]
) -> Counter[Parts]:
    """Count a text's segmented words.

    Runs of unknown letters, which SentencePiece joins, become single letters.
    """
    words = Counter[Parts]()
    for pieces in processor.encode(list(text), out_type=str):
        starts = [at for at, piece in enumerate(pieces) if at == 0 or piece.startswith(SPACE)]
        for start, end in pairwise([*starts, len(pieces)]):
            words[tuple(pieces[start:end])] += 1
    apart = Counter[Parts]()
    for word, count in words.items():
        pieces_and_letters: list[str] = []
        for piece in word:
            if piece in known_pieces:
                pieces_and_letters.append(piece)
            else:
                pieces_and_letters.extend(piece)
        parts = tuple(pieces_and_letters)
        for start in range(0, len(parts), LONGEST_WORD):
            apart[parts[start : start + LONGEST_WORD]] += count
    return apart


def _is_of_letters(piece: str) -> bool:
    """Return whether a piece may be merged.

    SentencePiece's training keeps letters apart from other characters.
    """
    return all(unicodedata.category(letter)[0] in "LM" for letter in piece.removeprefix(SPACE))


class _Joining:
    """Merges the most frequent neighbours in segmented words, one pair at a time."""

    def __init__(
        self, words: Mapping[Parts, int], scores: Mapping[str, float], parts: Mapping[str, Parts]
    ) -> None:
        """Set up the totals of all pairs.

        `scores` has all pieces that may be merged, `parts` the new ones among them.
        """
        self._cuts = list(map(list, words))
        self._counts = list(words.values())
        self._scores = dict(scores)
        self.parts = dict(parts)
        self._totals = Counter[Pair]()
        self._places = defaultdict[Pair, set[int]](set)
        self._heap: list[tuple[int, Pair]] = []
        for index in range(len(self._cuts)):
            self._count(index, range(len(self._cuts[index])), self._counts[index])
        self._offer(self._totals)

    def next_piece(self, old: Iterable[str], score: float | None) -> str | None:
        """Merge until there is a new piece, and return it.

        The result is None if no merge is frequent enough.

        With the new piece's `score`, merges whose parts score higher are made, but only as steps to
        longer ones. Merges that give an `old` piece are skipped: the model itself decides about
        these.
        """
        while self._heap:
            total, pair = heapq.heappop(self._heap)
            piece = "".join(pair)
            if -total != self._totals[pair] or piece in old or len(piece) > LONGEST:
                continue
            is_made = piece in self._scores
            together = sum(map(self._scores.__getitem__, pair))
            is_used = score is None or together < score
            if not is_made:
                self._scores[piece] = score if score is not None and is_used else together
                self.parts[piece] = tuple(
                    symbol for part in pair for symbol in self.parts.get(part, (part,))
                )
            self._join(pair, piece)
            if not is_made and is_used:
                return piece
        return None

    def _join(self, pair: Pair, piece: str) -> None:
        changed = set[Pair]()
        for index in self._places.pop(pair):
            cut = self._cuts[index]
            joined = list[str]()
            end = 0
            # Places of pairs that change
            old_places = set[int]()
            new_places = set[int]()
            while (start := _find(cut, pair, end)) < len(cut):
                joined += cut[end:start]
                old_places |= {start - 1, start, start + 1}
                new_places |= {len(joined) - 1, len(joined)}
                joined.append(piece)
                end = start + 2
            changed |= self._count(index, old_places, -self._counts[index])
            self._cuts[index] = joined + cut[end:]
            changed |= self._count(index, new_places, self._counts[index])
        self._offer(changed - {pair})

    def _count(self, index: int, places: Iterable[int], count: int) -> set[Pair]:
        """Add `count` to the totals of a word's pairs at places, and return the pairs."""
        cut = self._cuts[index]
        pairs = set[Pair]()
        for place in places:
            if not 0 <= place < len(cut) - 1:
                continue
            pair = cut[place], cut[place + 1]
            if pair[0] in self._scores and pair[1] in self._scores:
                self._totals[pair] += count
                self._places[pair].add(index)
                pairs.add(pair)
        return pairs

    def _offer(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            if self._totals[pair] >= LEAST_JOINS:
                heapq.heappush(self._heap, (-self._totals[pair], pair))


def _find(cut: Sequence[str], pair: Pair, start: int) -> int:
    """Return the first place of a pair from `start`; the length if there is none."""
    for place in range(start, len(cut) - 1):
        if cut[place] == pair[0] and cut[place + 1] == pair[1]:
            return place
    return len(cut)


def figures(
    processor: Processor, symbols: Iterable[str], lines: Sequence[str]
) -> tuple[float, float]:
    """Return pieces per word, and the share of pieces that the dictionary lacks.

    Blank lines do not count.
    """
    listed = set(symbols)
    pieces = processor.encode(list(lines), out_type=str)
    total = sum(map(len, pieces))
    unknown = sum(piece not in listed for cut in pieces for piece in cut)
    words = len(" ".join(lines).split())
    return total / max(1, words), unknown / max(1, total)


def changed(before: Processor, after: Processor, lines: Sequence[str]) -> int:
    """Return the number of lines that a model with more pieces splits differently."""
    return sum(map(ne, before.encode(list(lines)), after.encode(list(lines))))
