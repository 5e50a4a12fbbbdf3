"""A model in a bucket of S3, or of a store with the same protocol.

Checksums come from a file ``SHA256SUMS`` beside the weights if there is one. Otherwise the ETag is used if it is an
MD5: it is one for objects that were uploaded in one part and are not encrypted with a KMS key.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any

import obstore
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from weft_operator.weights.remote import (
    Body,
    Checksum,
    FetchError,
    Listing,
    RemoteFile,
    TransientFetchError,
    select_files,
)

CHUNK_BYTES = 1 << 20
SUMS = "SHA256SUMS"
MAX_SUMS_BYTES = 4 << 20
_SUM = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)")
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')
_STATUS = re.compile(r"status code: ([0-9]{3})")
KEYS = ("access_key_id", "secret_access_key", "session_token")
IDENTITY_VARIABLES = ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
"""Variables in pods whose service account has a cloud identity."""


class Bucket:
    """Reads the objects below one prefix of a bucket."""

    def __init__(
        self,
        *,
        endpoint: str,
        bucket: str,
        prefix: str,
        region: str,
        env: Mapping[str, str],
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> None:
        self._place = f"s3://{bucket}/{prefix.strip('/')}"
        self._include, self._exclude = include, exclude
        config: dict[str, Any] = {"region": region}
        if endpoint:
            config |= {"endpoint": endpoint.rstrip("/"), "virtual_hosted_style_request": False}
        keys = {name: env.get(f"AWS_{name.upper()}", "") for name in KEYS}
        config |= {name: value.strip() for name, value in keys.items() if value.strip()}
        if not keys["access_key_id"] and not any(env.get(name) for name in IDENTITY_VARIABLES):
            config["skip_signature"] = True
        self._store = S3Store(
            bucket,
            prefix=prefix.strip("/") or None,
            config=config,  # type: ignore[arg-type]
            # A response that stalls times out; the received bytes stay, and the next request resumes behind them.
            client_options={"allow_http": True, "connect_timeout": "15s", "timeout": "300s"},
            retry_config={
                "max_retries": 2,
                "retry_timeout": timedelta(seconds=30),
                "backoff": {"base": 2, "init_backoff": timedelta(seconds=1), "max_backoff": timedelta(seconds=5)},
            },
        )

    def list_files(self) -> Listing:
        """Return the objects below the prefix."""
        with _translated(self._place):
            found = [item for page in obstore.list(self._store) for item in page]
        sums = self._sums() if any(item["path"] == SUMS for item in found) else {}
        # Consoles make empty objects for folders, whose names the library gives without the slash at their end.
        folders = {str(folder) for item in found for folder in PurePosixPath(item["path"]).parents} | {""}
        files = [
            RemoteFile(
                item["path"],
                int(item["size"]),
                _checksum(item["path"], str(item["e_tag"] or ""), sums),
                str(item["e_tag"] or ""),
            )
            for item in found
            if item["path"] != SUMS and (item["size"] or item["path"] not in folders)
        ]
        if not files:
            raise FetchError(f"{self._place} holds no object; correct spec.model.source.s3.bucket or prefix")
        return Listing(select_files(files, self._include, self._exclude))

    @contextmanager
    def open(self, file: RemoteFile, offset: int) -> Iterator[Body]:
        """Open an object at a byte offset; one that was replaced since the listing is refused."""
        options: dict[str, Any] = {"range": {"offset": offset}} if offset else {}
        if file.version:
            options["if_match"] = file.version
        with _translated(f"{self._place}/{file.path}"):
            found = obstore.get(self._store, file.path, options=options)  # type: ignore[arg-type]
            yield Body(found.range[0], (bytes(part) for part in found.stream(CHUNK_BYTES)))

    def close(self) -> None:
        """Do nothing: the library closes the connections with the store."""

    def _sums(self) -> dict[str, str]:
        with _translated(f"{self._place}/{SUMS}"):
            found = obstore.get(self._store, SUMS)
            if found.meta["size"] > MAX_SUMS_BYTES:
                raise FetchError(f"{self._place}/{SUMS} is larger than {MAX_SUMS_BYTES} bytes; it is no list of sums")
            text = bytes(found.bytes()).decode(errors="replace")
        return {match[2].strip(): match[1].lower() for line in text.splitlines() if (match := _SUM.fullmatch(line))}


def _checksum(path: str, etag: str, sums: Mapping[str, str]) -> Checksum | None:
    if path in sums:
        return Checksum("sha256", sums[path])
    md5 = _MD5.fullmatch(etag)
    return Checksum("md5", md5[1]) if md5 else None


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Translate errors of the client library; its messages may contain signed URLs, so only the status is reported."""
    try:
        yield
    except InvalidPathError as error:
        raise FetchError(f"{what} has an object whose name is no path of a file, such as a//b; rename it") from error
    except PreconditionError as error:
        raise FetchError(f"{what} was replaced during the download; the next attempt takes the new one") from error
    except FileNotFoundError as error:
        raise _refusal(what, 404) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise _refusal(what, 403) from error
    except BaseError as error:
        status = _STATUS.search(str(error))
        raise _refusal(what, int(status[1]) if status else 0) from error


def _refusal(what: str, status: int) -> FetchError | TransientFetchError:
    """Return the error for a store's HTTP status; the library has no exceptions of its own for listings."""
    if status == 404:
        return FetchError(f"{what} is not there; correct spec.model.source.s3.bucket or prefix")
    if 400 <= status < 500 and status not in (408, 429):
        return FetchError(
            f"{what} is refused ({status}); check that the keys in spec.model.source.s3.credentialsSecretRef are valid "
            "and may list and read it, and that region is that of the bucket"
        )
    return TransientFetchError(f"{what} cannot be read ({status or 'no answer'})")
