"""A stand-in for the Hugging Face hub and for an S3 bucket: it counts what is asked, and breaks on demand.

``python -m weft_mock.weights --listen HOST:PORT`` serves the hub's ``/api/models/…`` and ``/…/resolve/…``, and the same
files in a bucket (``/BUCKET?list-type=2``, ``/BUCKET/PREFIX/FILE``). ``/stats`` tells what was asked so far.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import random
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from xml.sax.saxutils import escape

from aiohttp import web

CHUNK = 64 << 10
LARGE = 1 << 16
"""From this size on a file is kept by LFS: another checksum, and a redirect to a storage host."""
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@dataclass(slots=True)
class MockWeights:
    """One model and the faults with which it is served."""

    repo: str = "acme/tiny"
    bucket: str = "models"
    prefix: str = "tiny"
    token: str = ""
    """What the hub insists on; "": it is open."""
    access_key: str = ""
    """The key by which requests to the bucket must be signed; "": it is open."""
    shard_bytes: int = 4 << 20
    break_after: int = 0
    """The first answer of each shard ends after so many bytes; 0: none breaks."""
    corrupt: int = 0
    """So many whole answers of the first shard have a wrong byte."""
    storage: str = ""
    """URL of the host to which the hub sends for large files; localhost if empty."""
    mirror: bool = False
    """Whether the list of files has their names alone, as that of some mirrors."""
    ignore_range: bool = False
    away: int = 0
    """So many requests are answered by 503 first."""
    rate: float = 0.0
    """Bytes per second of each answer; 0: as fast as can be."""
    sums: bool = False
    """Whether the bucket has a file SHA256SUMS, and ETags that are no MD5."""
    extra: Mapping[str, bytes] = field(default_factory=dict)
    commit: str = COMMIT
    asked: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    offsets: list[int] = field(default_factory=list)
    refused: int = 0

    @property
    def files(self) -> dict[str, bytes]:
        """Return the files of the model."""
        index = {"metadata": {}, "weight_map": {f"layer.{i}": name for i, name in enumerate(SHARDS)}}
        return {
            "config.json": json.dumps({"model_type": "llama", "hidden_size": 256}).encode(),
            "model.safetensors.index.json": json.dumps(index).encode(),
            "pytorch_model.bin": b"the same weights once more",
            **{name: _bytes_of(name, self.shard_bytes) for name in SHARDS},
            **self.extra,
        }

    def stats(self) -> dict[str, object]:
        """Return what was asked and sent so far."""
        return {
            "asked": dict(self.asked),
            "sent": dict(self.sent),
            "offsets": self.offsets,
            "refused": self.refused,
        }

    def app(self) -> web.Application:
        """Return the web application."""
        app = web.Application()
        app.router.add_get("/stats", self._stats)
        app.router.add_get("/storage/{path:.+}", self._storage)
        app.router.add_get(f"/api/models/{self.repo}/revision/{{revision}}", self._model)
        app.router.add_get(f"/{self.repo}/resolve/{{revision}}/{{path:.+}}", self._resolve)
        app.router.add_get(f"/{self.bucket}", self._list_bucket)
        app.router.add_get(f"/{self.bucket}/{{path:.+}}", self._object)
        return app

    async def _stats(self, _: web.Request) -> web.Response:
        return web.json_response(self.stats())

    async def _model(self, request: web.Request) -> web.Response:
        self._insist_on_token(request)
        if request.match_info["revision"] not in ("main", self.commit):
            raise web.HTTPNotFound
        siblings = []
        for name, data in self.files.items():
            item: dict[str, object] = {"rfilename": name}
            if self.mirror:
                siblings.append(item)
                continue
            item |= {"size": len(data), "blobId": _blob(data)}
            if len(data) >= LARGE:
                item |= {"blobId": "0" * 40, "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}}
            siblings.append(item)
        return web.json_response({"id": self.repo, "sha": self.commit, "siblings": siblings})

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        self._insist_on_token(request)
        name = request.match_info["path"]
        if request.method == "HEAD":
            return self._head(self.files[name])
        if len(self.files.get(name, b"")) >= LARGE:
            # Another host, to which no client may carry the token.
            storage = self.storage or f"http://localhost:{request.url.port}"
            raise web.HTTPFound(f"{storage}/storage/{name}?X-Signature=signed-url-secret")
        return await self._send(request, name)

    def _head(self, data: bytes) -> web.Response:
        if len(data) < LARGE:
            return web.Response(body=data, headers={"ETag": f'"{_blob(data)}"'})
        tag = f'"{hashlib.sha256(data).hexdigest()}"'
        headers = {"Location": "/elsewhere", "X-Linked-Size": str(len(data)), "X-Linked-Etag": tag}
        return web.Response(status=302, headers=headers)

    async def _storage(self, request: web.Request) -> web.StreamResponse:
        if "Authorization" in request.headers:
            self.refused += 1
            raise web.HTTPBadRequest(text="a storage host must not see the token")
        return await self._send(request, request.match_info["path"])

    async def _list_bucket(self, request: web.Request) -> web.Response:
        self._insist_on_signature(request)
        rows = "".join(
            f"<Contents><Key>{escape(f'{self.prefix}/{name}')}</Key><Size>{len(data)}</Size>"
            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{escape(self._etag(data))}</ETag></Contents>"
            for name, data in self._objects().items()
            if f"{self.prefix}/{name}".startswith(request.query.get("prefix", ""))
        )
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        return web.Response(text=text, content_type="application/xml")

    async def _object(self, request: web.Request) -> web.StreamResponse:
        self._insist_on_signature(request)
        name = request.match_info["path"].removeprefix(f"{self.prefix}/")
        return await self._send(request, name, self._objects())

    def _objects(self) -> dict[str, bytes]:
        files = self.files
        if not self.sums:
            return files
        lines = (f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
        return {**files, "SHA256SUMS": "".join(lines).encode()}

    def _etag(self, data: bytes) -> str:
        digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
        return f'"{digest}-2"' if self.sums else f'"{digest}"'

    def _insist_on_token(self, request: web.Request) -> None:
        if self.away:
            self.away -= 1
            raise web.HTTPServiceUnavailable
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            self.refused += 1
            raise web.HTTPUnauthorized

    def _insist_on_signature(self, request: web.Request) -> None:
        if self.away:
            self.away -= 1
            raise web.HTTPServiceUnavailable
        signed = f"AWS4-HMAC-SHA256 Credential={self.access_key}/"
        if self.access_key and not request.headers.get("Authorization", "").startswith(signed):
            self.refused += 1
            raise web.HTTPForbidden

    async def _send(
        self, request: web.Request, name: str, files: Mapping[str, bytes] | None = None
    ) -> web.StreamResponse:
        data = (self.files if files is None else files).get(name)
        if data is None:
            raise web.HTTPNotFound
        start = 0 if self.ignore_range else request.http_range.start or 0
        self.asked[name] += 1
        self.offsets += [start] if name in SHARDS else []
        if name == SHARDS[0] and self.corrupt and not start:
            self.corrupt -= 1
            data = bytes([data[0] ^ 1]) + data[1:]
        headers = {"ETag": self._etag(data), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        response = web.StreamResponse(status=206 if start else 200, headers=headers)
        response.content_length = len(data) - start
        await response.prepare(request)
        breaks = self.break_after if name in SHARDS and self.asked[name] == 1 else 0
        for at in range(start, len(data), CHUNK):
            if breaks and at - start >= breaks:
                if request.transport is not None:
                    request.transport.close()
                return response
            part = data[at : at + CHUNK]
            await response.write(part)
            self.sent[name] += len(part)
            if self.rate:
                await asyncio.sleep(len(part) / self.rate)
        await response.write_eof()
        return response


@cache
def _bytes_of(name: str, size: int) -> bytes:
    return random.Random(name).randbytes(size)  # noqa: S311


def _blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


async def serve(model: MockWeights, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT."""
    runner = web.AppRunner(model.app(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    over = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, over.set)
    with contextlib.suppress(asyncio.CancelledError):
        await over.wait()
    await runner.cleanup()


def main(argv: Sequence[str] | None = None) -> None:
    """Serve one model as the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m weft_mock.weights")
    parser.add_argument("--listen", default="127.0.0.1:8000", help="HOST:PORT")
    parser.add_argument("--repo", default="acme/tiny", help="name of the model at the hub")
    parser.add_argument("--token", default="", help="token that the hub insists on")
    parser.add_argument("--storage", default="", help="URL of this server by another name, to send for large files to")
    parser.add_argument("--access-key", default="", help="access key by which requests to the bucket are signed")
    parser.add_argument("--shard-bytes", type=int, default=4 << 20)
    parser.add_argument(
        "--break-after", type=int, default=0, help="end the first answer of each shard after so many bytes"
    )
    parser.add_argument("--rate", type=float, default=0.0, help="bytes per second of each answer")
    given = parser.parse_args(argv)
    host, _, port = given.listen.rpartition(":")
    model = MockWeights(
        repo=given.repo,
        token=given.token,
        storage=given.storage,
        access_key=given.access_key,
        shard_bytes=given.shard_bytes,
        break_after=given.break_after,
        rate=given.rate,
    )
    asyncio.run(serve(model, host.strip("[]"), int(port)))


if __name__ == "__main__":
    main()
