"""A model on the Hugging Face hub, or on a mirror that speaks its protocol.

One request lists the files with sizes and checksums (``/api/models/{repo}/revision/{revision}?blobs=true``), one for
each file sends its bytes (``/{repo}/resolve/{commit}/{path}``, with ``Range``). The token goes to the endpoint alone:
httpx drops the header where the hub redirects to a storage host.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx

from weft_operator.weights.remote import (
    Algorithm,
    Body,
    Checksum,
    FetchError,
    Listing,
    RemoteFile,
    TransientFetchError,
    select_files,
)

CHUNK_BYTES = 1 << 20
TIMEOUT = httpx.Timeout(30.0, connect=15.0)
"""Between two reads, not for a whole file."""
_BUSY = (408, 425, 429)
_RANGE = re.compile(r"bytes (\d+)-")
_HEX = re.compile(r"[0-9a-f]+")
_TAGS: Mapping[int, Algorithm] = {64: "sha256", 40: "git-blob"}
"""The algorithm of the hub's ETags, by their length."""


class Hub:
    """Reads one repository at one revision."""

    def __init__(
        self,
        *,
        endpoint: str,
        repo: str,
        revision: str,
        token: str = "",
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> None:
        self._endpoint, self._repo, self._revision = endpoint.rstrip("/"), repo, revision
        self._include, self._exclude = include, exclude
        self._has_token = bool(token)
        headers = {"User-Agent": "weft", "Accept-Encoding": "identity"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._client = httpx.Client(headers=headers, timeout=TIMEOUT, follow_redirects=True)
        self._commit = ""

    def list_files(self) -> Listing:
        """Return the files of the repository at the revision."""
        url = f"{self._endpoint}/api/models/{self._repo}/revision/{quote(self._revision, safe='')}"
        try:
            answer = self._client.get(url, params={"blobs": "true"})
        except httpx.HTTPError as error:
            raise TransientFetchError(f"{self._endpoint} does not answer ({type(error).__name__})") from error
        self._raise_for(answer, self._repo)
        try:
            body = answer.json()
            self._commit = str(body["sha"])
            files = [_file(item) if "size" in item else self._head(str(item["rfilename"])) for item in body["siblings"]]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise FetchError(
                f"{self._endpoint} does not list {self._repo} as the Hugging Face hub does; correct "
                "spec.model.source.huggingFace.endpoint"
            ) from error
        return Listing(select_files(files, self._include, self._exclude), self._commit)

    def _head(self, path: str) -> RemoteFile:
        """Read the size and checksum of one file with HEAD, as the hub's client does: some mirrors do not list them."""
        url = f"{self._endpoint}/{self._repo}/resolve/{self._commit}/{quote(path)}"
        try:
            answer = self._client.head(url, follow_redirects=False)
            if answer.is_redirect and "X-Linked-Size" not in answer.headers:  # the repository has another name now
                answer = self._client.head(url)
        except httpx.HTTPError as error:
            raise TransientFetchError(f"{self._endpoint} does not answer ({type(error).__name__})") from error
        if not answer.is_redirect:
            self._raise_for(answer, path)
        size = answer.headers.get("X-Linked-Size") or answer.headers["Content-Length"]
        tag = (answer.headers.get("X-Linked-Etag") or answer.headers.get("ETag") or "").removeprefix("W/").strip('"')
        algorithm = _TAGS.get(len(tag)) if _HEX.fullmatch(tag) else None
        return RemoteFile(path, int(size), Checksum(algorithm, tag) if algorithm is not None else None, tag)

    @contextmanager
    def open(self, file: RemoteFile, offset: int) -> Iterator[Body]:
        """Open a file at a byte offset."""
        url = f"{self._endpoint}/{self._repo}/resolve/{self._commit}/{quote(file.path)}"
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        try:
            with self._client.stream("GET", url, headers=headers) as answer:
                self._raise_for(answer, file.path)
                content_range = _RANGE.match(answer.headers.get("Content-Range", ""))
                start = int(content_range[1]) if content_range else offset
                yield Body(start if answer.status_code == 206 else 0, answer.iter_raw(CHUNK_BYTES))
        except httpx.HTTPError as error:
            raise TransientFetchError(f"{file.path}: the connection broke ({type(error).__name__})") from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _raise_for(self, answer: httpx.Response, what: str) -> None:
        status, where = answer.status_code, self._endpoint
        if status < 300:
            return
        if status >= 500 or status in _BUSY:
            raise TransientFetchError(f"{where} answers {status} for {what}")
        if status in (401, 403):
            remedy = (
                "check that the token in spec.model.source.huggingFace.tokenSecretRef is valid and that its account "
                "was granted access to the model"
                if self._has_token
                else "where the model is gated, give a token in spec.model.source.huggingFace.tokenSecretRef; correct "
                "spec.model.name where it does not exist"
            )
            raise FetchError(f"{where} refuses {what} ({status}); {remedy}")
        if status == 404:
            raise FetchError(
                f"{where} has no {what} at revision {self._revision}; correct spec.model.name or "
                "spec.model.source.huggingFace.revision"
            )
        raise FetchError(f"{where} answers {status} for {what}")


def _file(item: dict[str, Any]) -> RemoteFile:
    lfs = item.get("lfs")
    if lfs:
        checksum: Checksum | None = Checksum("sha256", str(lfs.get("sha256") or lfs["oid"]))
    else:
        checksum = Checksum("git-blob", str(item["blobId"])) if item.get("blobId") else None
    return RemoteFile(str(item["rfilename"]), int(item["size"]), checksum)
