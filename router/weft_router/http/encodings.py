"""Decode compressed request bodies (RFC 9110, section 8.4) within what a body, and all of them, may take.

A few bytes may decode to any number, so output is made in pieces, and counted before the next one is made.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Final

import zstandard

from weft_router.errors import ApiError, InvalidRequestError, TooLargeError

PIECE: Final = 256 * 2**10
"""Bytes that are made at a time: less than a millisecond."""
IDENTITY: Final = "identity"
_ZSTD_WINDOW: Final = 8 * 2**20
"""The largest window that a decoder has to support (RFC 8878, section 3.1.1.1.2)."""
_GZIP: Final = zlib.MAX_WBITS | 16


def _inflated(raw: bytes, window: int) -> Iterator[bytes]:
    while raw:  # a gzip file may have several members
        decoder = zlib.decompressobj(window)
        while not decoder.eof:
            piece = decoder.decompress(raw, PIECE)
            raw = decoder.unconsumed_tail
            if not piece and not raw and not decoder.eof:
                raise zlib.error("incomplete")
            yield piece
        raw = decoder.unused_data
        if raw and window != _GZIP:
            raise zlib.error("more than one stream")


def _gunzipped(raw: bytes) -> Iterator[bytes]:
    return _inflated(raw, _GZIP)


def _deflated(raw: bytes) -> Iterator[bytes]:
    """Decode what HTTP calls deflate: zlib's format, which some clients leave the head of away."""
    whole = len(raw) >= 2 and raw[0] & 0x0F == 8 and int.from_bytes(raw[:2], "big") % 31 == 0
    return _inflated(raw, zlib.MAX_WBITS if whole else -zlib.MAX_WBITS)


def _unzstd(raw: bytes) -> Iterator[bytes]:
    decoder = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    with decoder.stream_reader(BytesIO(raw), read_across_frames=True) as reader:
        while piece := reader.read(PIECE):
            yield piece


_DECODERS: Final[dict[str, Callable[[bytes], Iterator[bytes]]]] = {
    "gzip": _gunzipped,
    "x-gzip": _gunzipped,
    "deflate": _deflated,
    "zstd": _unzstd,
}
KNOWN: Final = frozenset({IDENTITY, *_DECODERS})


def encoding_of(headers: dict[str, str]) -> str:
    """Return how a request's body is encoded.

    Raises:
        ApiError: in a way that is not known here.
    """
    encoding = headers.get("content-encoding", IDENTITY).strip().lower()
    if encoding not in KNOWN:
        raise ApiError(
            f"content-encoding: {encoding[:64]!r} is not known here; send gzip, deflate, zstd, or plain JSON",
            status=415,
        )
    return encoding


async def decoded(raw: bytes, encoding: str, *, most: int, hold: Callable[[int], None]) -> bytes:
    """Return a body without its encoding; while a long one is decoded, others are served.

    ``hold`` is called with the bytes of each piece before the next one is made.

    Raises:
        InvalidRequestError: it is not what its header says.
        TooLargeError: it has more than ``most`` bytes.
        ApiError: ``hold`` has no room.
    """
    if encoding == IDENTITY:
        return raw
    pieces: list[bytes] = []
    size = 0
    try:
        for piece in _DECODERS[encoding](raw):
            size += len(piece)
            if size > most:
                raise TooLargeError(most)
            hold(len(piece))
            pieces.append(piece)
            if len(pieces) > 1:
                await asyncio.sleep(0)
    except (zlib.error, zstandard.ZstdError) as error:
        raise InvalidRequestError(f"the request body cannot be decoded as {encoding}: {error}") from error
    return b"".join(pieces)
