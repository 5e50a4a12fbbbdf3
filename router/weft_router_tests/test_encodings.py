"""Compressed bodies: what comes out is what went in, and never more than there is room for."""

import contextlib
import gzip
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from weft_router.errors import ApiError, InvalidRequestError, TooLargeError, UnavailableError
from weft_router.http.encodings import PIECE, decoded, encoding_of

BOMB = 50 * 2**20


def raw_deflate(data: bytes) -> bytes:
    maker = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return maker.compress(data) + maker.flush()


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


ENCODERS = (
    ("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", raw_deflate),
    ("zstd", zstd), ("identity", bytes),
)  # fmt: skip


@given(st.binary(max_size=3 * PIECE), st.sampled_from(ENCODERS))
async def test_a_body_comes_out_as_it_went_in(data: bytes, how: tuple[str, object]) -> None:
    encoding, encode = how
    held: list[int] = []
    assert callable(encode)
    assert await decoded(encode(data), encoding, most=10 * PIECE, hold=held.append) == data
    assert encoding == "identity" or sum(held) == len(data)


@pytest.mark.parametrize(("encoding", "encode"), ENCODERS[:-1])
async def test_a_bomb_is_refused_at_its_limit(encoding: str, encode: object) -> None:
    assert callable(encode)
    raw = encode(bytes(BOMB))
    held: list[int] = []
    with pytest.raises(TooLargeError):
        await decoded(raw, encoding, most=PIECE, hold=held.append)
    assert sum(held) <= PIECE

    def full(_: int) -> None:
        raise UnavailableError("no room")

    with pytest.raises(UnavailableError):
        await decoded(raw, encoding, most=BOMB, hold=full)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
async def test_what_is_not_encoded_as_it_says_is_refused(encoding: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"cannot be decoded as {encoding}"):
        await decoded(b"{}" * 50, encoding, most=2**20, hold=lambda _: None)


@given(st.sampled_from(("gzip", "deflate", "zstd")), st.binary(min_size=1, max_size=200))
async def test_no_bytes_end_in_another_error(encoding: str, data: bytes) -> None:
    with contextlib.suppress(InvalidRequestError):
        await decoded(data, encoding, most=2**20, hold=lambda _: None)


async def test_members_of_gzip_are_one_body_and_a_cut_one_is_refused() -> None:
    raw = gzip.compress(b"a") + gzip.compress(b"b")
    assert await decoded(raw, "gzip", most=10, hold=lambda _: None) == b"ab"
    with pytest.raises(InvalidRequestError):
        await decoded(raw[:-3], "gzip", most=10, hold=lambda _: None)


def test_unknown_encodings_are_named() -> None:
    assert encoding_of({}) == "identity"
    assert encoding_of({"content-encoding": "GZIP"}) == "gzip"
    with pytest.raises(ApiError, match="'br' is not known here") as refused:
        encoding_of({"content-encoding": "br"})
    assert refused.value.status == 415
