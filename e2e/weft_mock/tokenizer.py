"""Turn text into token ids and back without loss, at about four bytes of text per token.

The vocabulary is fixed and needs no files: special tokens, single bytes, pairs of printable
ASCII characters, and three-letter words with and without a space before them. The model speaks
in such words, so what it generates is cut into the very same ids when a client sends it back
inside the next prompt. That property is what lets a later round of a session read its history.
"""

import re
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import orjson

BOS = 1
END_OF_TURN = 2
ASSISTANT = 5
_ROLES: Mapping[str, int] = {"system": 3, "user": 4, "assistant": ASSISTANT, "tool": 6, "developer": 7}
_TOOLS = 8
_TOOL_CALLS = 9

_BYTES = 16
_PAIRS = _BYTES + 256
_PRINTABLE = [chr(c) for c in range(32, 127)]
_TRIPLES = _PAIRS + len(_PRINTABLE) ** 2
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SPACED = _TRIPLES + len(_LETTERS) ** 3
VOCABULARY = _SPACED + len(_LETTERS) ** 3
"""Ids are 0 .. VOCABULARY - 1."""

ROLES = frozenset(_ROLES)

_PIECES: list[bytes] = (
    [b""] * _BYTES
    + [bytes([b]) for b in range(256)]
    + [(a + b).encode() for a, b in product(_PRINTABLE, _PRINTABLE)]
    + ["".join(t).encode() for t in product(_LETTERS, repeat=3)]
    + [b" " + "".join(t).encode() for t in product(_LETTERS, repeat=3)]
)
_IDS: dict[str, int] = {_PIECES[i].decode(): i for i in range(_PAIRS, VOCABULARY)}

# Words and numbers take one space before them along, so a space never depends on what follows it.
SPLIT = re.compile(r" ?[A-Za-z]+| ?[0-9]+|\s+(?!\S)|\s+|[^\sA-Za-z0-9]+")

# Distinct words of a run are few, but a client could send random text for ever: start anew at this size (about 20 MB).
_CACHE_LIMIT = 100_000

# Words that look pronounceable: consonant, vowel, consonant. The model and the filler use only these.
WORDS: tuple[int, ...] = tuple(
    _IDS[a + b + c] for a, b, c in product("bcdfghjklmnprstvwz", "aeiou", "bcdfghjklmnprstvwz")
)
SPACE_OFFSET = _SPACED - _TRIPLES
"""Adding this to a word's id gives the id of the same word with a space before it."""


class UnknownTokenError(ValueError):
    """Report a token id outside the vocabulary."""


class ChatError(ValueError):
    """Report messages the chat template cannot render; the text names the field."""


class _Cutter(dict[str, tuple[int, ...]]):
    """Remember how each piece of text was cut."""

    def __missing__(self, piece: str) -> tuple[int, ...]:
        if len(self) >= _CACHE_LIMIT:
            self.clear()
        cut = tuple(_cut(piece))
        self[piece] = cut
        return cut


_cutter = _Cutter()


class _Memory:
    """Remember the ids of long texts: every round of a session sends its whole history again."""

    def __init__(self, most_tokens: int) -> None:
        """Keep texts of this many tokens in total, the latest used ones."""
        self._texts: OrderedDict[str, list[int]] = OrderedDict()
        self._room = most_tokens

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text; the caller must not change the list."""
        known = self._texts.get(text)
        if known is not None:
            self._texts.move_to_end(text)
            return known
        ids = _encode(text)
        self._texts[text] = ids
        self._room -= len(ids)
        while self._room < 0 and len(self._texts) > 1:
            self._room += len(self._texts.popitem(last=False)[1])
        return ids


# Half a million tokens take about 6 MB: the histories of some dozens of sessions.
_memory = _Memory(500_000)
_LONG_TEXT = 400


def _cut(piece: str) -> Iterable[int]:
    at = 0
    while at < len(piece):
        for width in (4, 3, 2):
            token = _IDS.get(piece[at : at + width])
            if token is not None and len(_PIECES[token]) == width:
                yield token
                at += width
                break
        else:
            yield from (_BYTES + b for b in piece[at].encode("utf-8", "surrogatepass"))
            at += 1


def encode(text: str) -> list[int]:
    """Return the ids of a text; never a special token, whatever the text says."""
    return list(_memory.ids(text)) if len(text) >= _LONG_TEXT else _encode(text)


def _encode(text: str) -> list[int]:
    ids: list[int] = []
    for piece in SPLIT.findall(text):
        ids += _cutter[piece]
    return ids


def decode(ids: Iterable[int]) -> str:
    """Return the text of ids, special tokens left out; bytes that are no UTF-8 become U+FFFD."""
    try:
        return b"".join([_PIECES[i] for i in ids]).decode("utf-8", "replace")
    except IndexError:
        raise UnknownTokenError(f"token ids must be below {VOCABULARY}") from None


def text_of(token: int) -> str:
    """Return the text of one id, nothing for a special token and for a byte that is no character by itself."""
    return _PIECES[token].decode("utf-8", "ignore")


def check_ids(ids: Sequence[int]) -> None:
    """Refuse ids outside the vocabulary.

    Raises:
        UnknownTokenError: an id is negative or too large.
    """
    if ids and not (min(ids) >= 0 and max(ids) < VOCABULARY):
        raise UnknownTokenError(f"token ids must be 0 to {VOCABULARY - 1}")


def id_bytes(ids: Sequence[int]) -> bytes:
    """Return four big-endian bytes per id: the form in which the model reads its context."""
    packed = array("I", ids)
    packed.byteswap()
    return packed.tobytes()


def completion_ids(text: str) -> list[int]:
    """Return the ids of a plain prompt, as ``/v1/completions`` reads it."""
    return [BOS, *encode(text)]


def chat_ids(
    messages: Sequence[Mapping[str, object]],
    *,
    tools: object = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> list[int]:
    """Render messages with the chat template and return their ids.

    A conversation that goes on by the assistant's answer and further messages has the earlier
    prompt, the generated ids and one end-of-turn token as its prefix. Reasoning fields are dropped, as templates do.

    Raises:
        ChatError: a role is unknown, or a content is not text.
    """
    ids = [BOS]
    if tools:
        ids += [_TOOLS, *encode(orjson.dumps(tools).decode()), END_OF_TURN]
    for index, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise ChatError(f"messages[{index}].role: {role!r} is unknown; use one of {', '.join(sorted(_ROLES))}")
        ids.append(_ROLES[role])
        ids += encode(_content(message.get("content"), index))
        calls = message.get("tool_calls")
        if calls:
            ids += [_TOOL_CALLS, *encode(orjson.dumps(calls, option=orjson.OPT_SORT_KEYS).decode())]
        if not (continue_final_message and index == len(messages) - 1):
            ids.append(END_OF_TURN)
    if add_generation_prompt and not continue_final_message:
        ids.append(ASSISTANT)
    return ids


def _content(content: object, index: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ChatError(f"messages[{index}].content: a text or a list of text parts is needed")
    texts: list[str] = []
    for at, part in enumerate(content):
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise ChatError(f"messages[{index}].content[{at}]: only parts of type text are simulated")
        texts.append(text)
    return "\n".join(texts)


def filler(n: int, seed: int) -> str:
    """Return a text of exactly ``n`` tokens, the same one for the same seed.

    The count holds for the text alone and after anything that is not a letter.
    """
    mixed = (seed * 0x9E3779B97F4A7C15 + 0x2545F4914F6CDD1D) & 0xFFFFFFFFFFFFFFFF
    ids: list[int] = []
    for index in range(n):
        mixed = (mixed * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        word = WORDS[(mixed >> 33) % len(WORDS)]
        ids.append(word + SPACE_OFFSET if index else word)
    return decode(ids)
