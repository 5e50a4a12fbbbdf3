"""Write the chunks of a streamed body, and read one that is written in the same way without a parser's callbacks.

What is not plainly one whole chunk is left to llhttp (tests hold the two to the same result).
"""

from typing import Final

_SHORT: Final = 4096
_END: Final = b"\r\n"
_LINES: Final = [b"%x\r\n" % size for size in range(_SHORT)]
"""The first lines of chunks, by the sizes of their data; longer ones are few for their bytes."""
_BY_LENGTH: Final = [b""] * (_SHORT + 8)
"""The first line of the chunk that takes so many bytes altogether; empty where no chunk does, or only the last one."""
for _size in range(1, _SHORT):
    _BY_LENGTH[len(_LINES[_size]) + _size + len(_END)] = _LINES[_size]


def chunk_of(data: bytes) -> bytes:
    """Return bytes as a chunk."""
    size = len(data)
    if size < _SHORT:
        return _LINES[size] + data + _END
    return b"%x\r\n%b\r\n" % (size, data)


def read_chunk(chunk: bytes) -> bytes:
    """Return the data of exactly one chunk; nothing for any other bytes, and for the last chunk."""
    length = len(chunk)
    line = _BY_LENGTH[length] if length < len(_BY_LENGTH) else b""
    return chunk[len(line) : -2] if line and chunk.startswith(line) and chunk.endswith(_END) else b""
