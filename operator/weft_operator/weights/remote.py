"""The interface of download sources: a listing with sizes and checksums, and file contents from any offset. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Literal, Protocol

PARTIAL = ".partial"
"""Suffix of a file's name until the file is complete and verified."""

Algorithm = Literal["sha256", "git-blob", "md5"]


class FetchError(Exception):
    """A permanent failure; the message names the fault and the fix."""


class TransientFetchError(Exception):
    """A failure that may pass: the network, or a busy server."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """The expected checksum of a file; ``git-blob`` is the SHA-1 by which git names its content."""

    algorithm: Algorithm
    digest: str


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a model; ``version`` identifies its content at the source, "" where the source has none."""

    path: str
    size: int
    checksum: Checksum | None = None
    version: str = ""

    @property
    def identity(self) -> str:
        """Return what distinguishes this content from other content of the same name."""
        return f"{self.size}:{self.checksum.digest if self.checksum is not None else self.version}"


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a model, and their version: a commit, or ""."""

    files: tuple[RemoteFile, ...]
    version: str = ""

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Body:
    """The content of a file from ``start`` on; a server may ignore the requested offset."""

    start: int
    chunks: Iterator[bytes]


class Source(Protocol):
    """Where a model is downloaded from."""

    def list_files(self) -> Listing:
        """Return the files of the model.

        Raises:
            FetchError: there is no such model, or it may not be read.
            TransientFetchError: the source does not answer.
        """

    def open(self, file: RemoteFile, offset: int) -> AbstractContextManager[Body]:
        """Open a file at a byte offset; reading may raise TransientFetchError."""

    def close(self) -> None:
        """Close the connections."""


FORMATS_BESIDE_SAFETENSORS = (
    "*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.ot", "*.tflite",
    "original/*", "onnx/*", "openvino/*",
)  # fmt: skip
"""Other formats of the same weights; engines prefer safetensors."""


def select_files(files: Iterable[RemoteFile], include: Sequence[str], exclude: Sequence[str]) -> tuple[RemoteFile, ...]:
    """Return the files to download, by patterns over their paths; without any, one format of the weights.

    Raises:
        FetchError: no file is selected, a path leads out of the model's folder, or two files have the same path.
    """
    offered = [file for file in files if not _is_reserved(PurePosixPath(file.path).name)]
    if not exclude and not include and any(file.path.endswith(".safetensors") for file in offered):
        exclude = FORMATS_BESIDE_SAFETENSORS
        if any(file.path.startswith("model") and file.path.endswith(".safetensors") for file in offered):
            exclude = (*exclude, "consolidated*.safetensors")
    chosen = [
        file for file in offered if (not include or _matches(file.path, include)) and not _matches(file.path, exclude)
    ]
    for file in chosen:
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts or "\0" in file.path or not path.parts:
            raise FetchError(f"the source lists a file {file.path!r} outside the model's folder; it is not downloaded")
        if file.size < 0:
            raise FetchError(f"the source lists {file.path!r} with a size of {file.size} bytes; the source is broken")
    names = [str(PurePosixPath(file.path)) for file in chosen]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise FetchError(f"the source lists {twice[0]!r} twice; the source is broken")
    if not chosen:
        raise FetchError("no file is left to download; correct include and exclude, or the prefix of an S3 source")
    return tuple(sorted(chosen, key=lambda file: file.path))


def _is_reserved(name: str) -> bool:
    """Return whether the cache uses such names itself: hidden files and partial ones."""
    return name.startswith(".") or name.endswith(PARTIAL)


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)
