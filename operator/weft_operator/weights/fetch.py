"""The program of the pods that fill a cache: download a model and verify it, hold it, or remove it.

``fetch`` runs in a Job that fills a claim. ``hold`` runs in a sidecar beside an engine that loads from a folder of its
node: it downloads what is missing there, says by a file that the model is there, and holds its lock while the pod
lives, so that no other program removes it. ``remove`` ends a model that nobody uses any more.

The pod has no token of the API server. What it says last is its termination message, which the operator reads from the
pod's status; its exit code 2 says that no further attempt helps. Tokens and keys come by environment variables and are
in no argument, message or log line.
"""

import argparse
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from typing import Any

from redis.exceptions import RedisError

import redis
from weft_core.authority import is_http_url
from weft_operator.logs import configure
from weft_operator.weights.download import download_all
from weft_operator.weights.folder import LOCK_WAIT_S, ModelFolder, remove_unused
from weft_operator.weights.hub import Hub
from weft_operator.weights.progress import TOLD_S, Progress, progress_key, progress_value
from weft_operator.weights.remote import FetchError, Listing, Source, TransientFetchError
from weft_operator.weights.s3 import Bucket

SOURCE_VARIABLE = "WEFT_WEIGHTS_SOURCE"
"""What to download, as JSON: weights.cache writes it."""
SECRET_VARIABLES = ("HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
TERMINATION_FILE = "/dev/termination-log"
READY_FILE = "/tmp/weights-ready"  # noqa: S108 - the pod's own
PERMANENT = 2
TELL_S = 2.0
RATE_OVER_S = 30.0
HELD_S = 60.0
"""So often a holder says by the time of the lock file that the model is in use."""
_WORDS = 900
_ENDED = "ended before the download was complete; the next attempt goes on"

log = logging.getLogger("weft_operator.weights.fetch")


def main(argv: Sequence[str] | None = None, env: Mapping[str, str] = os.environ) -> int:
    """Do what the arguments ask for; return 0, 1 where another attempt may help, or 2."""
    given = _arguments(argv)
    configure("info")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs URLs, and those of storage hosts are signed
    halt = Event()
    signal.signal(signal.SIGTERM, lambda *_: halt.set())
    model = ModelFolder(given.root, given.model)
    try:
        said, code = _run(given, model, env, halt), 0
    except FetchError as error:
        said, code = str(error), PERMANENT
    except TransientFetchError as error:
        said, code = str(error), 1
    except PermissionError as error:
        said, code = f"{error.filename or given.root} cannot be written; make it writable for user 65532", PERMANENT
    except OSError as error:
        said, code = f"{error.strerror or type(error).__name__} on the volume", 1
    log.info("ended", extra={"code": code, "said": said})
    given.say.write_text(said[:_WORDS], encoding="utf-8")
    return code


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="weft_operator.weights.fetch")
    parser.add_argument("verb", choices=("fetch", "hold", "remove"))
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--model", required=True, help="NAMESPACE/SERVICE/KEY")
    parser.add_argument("--keep-unused-seconds", type=float, default=0.0)
    parser.add_argument("--say", type=Path, default=Path(TERMINATION_FILE))
    parser.add_argument("--ready", type=Path, default=Path(READY_FILE))
    return parser.parse_args(argv)


def _run(given: argparse.Namespace, model: ModelFolder, env: Mapping[str, str], halt: Event) -> str:
    if given.verb == "remove":
        with model.locked(halt=halt) as lock:
            if lock is None:
                raise TransientFetchError(_ENDED)
            model.remove()
        return "removed"
    if given.verb == "fetch":
        return _fetch(model, env, halt)
    remove_unused(given.root, given.keep_unused_seconds, but=model.name)
    while not halt.is_set():
        said = _fetch(model, env, halt)
        with model.locked(shared=True, halt=halt) as lock:
            if lock is None or model.version() is None:
                continue  # another program removed it between the two locks
            given.ready.write_text(said, encoding="utf-8")
            while not halt.wait(HELD_S):
                os.utime(lock.fileno())
    return "ended"


def _fetch(model: ModelFolder, env: Mapping[str, str], halt: Event) -> str:
    """Bring the model into its folder unless it is there; return what there is to tell, as JSON.

    Whoever downloads has the lock alone, so the shared lock waits for the end of that. It is shared again by all who
    hold the model for a worker: nobody may wait to have it alone, or the second worker on a node would never start.
    """
    while not halt.is_set():
        with model.locked(shared=True, halt=halt) as lock:
            if lock is not None and (found := _found(model)):
                return found
        with model.locked() as lock:
            if lock is not None:
                return _found(model) or _download(model, env, halt)
        halt.wait(LOCK_WAIT_S)
    raise TransientFetchError(_ENDED)


def _found(model: ModelFolder) -> str:
    """Return what there is to tell of a model that is there, "" of another."""
    version = model.version()
    if version is None:
        return ""
    log.info("already_there", extra={"model": model.name})
    return json.dumps({"bytes": model.size(), "version": version, "seconds": 0})


def _download(model: ModelFolder, env: Mapping[str, str], halt: Event) -> str:
    since = time.monotonic()
    with closing(source_of(json.loads(env[SOURCE_VARIABLE]), env)) as source:
        listing = _list(source, halt)
        folder = model.begin(listing)
        log.info("download_started", extra={"model": model.name, "files": len(listing.files), "bytes": listing.size})
        with _ProgressReporter(model, listing, env):
            download_all(source, listing, folder, stop=halt)
    if halt.is_set():
        raise TransientFetchError(_ENDED)
    model.finish(listing)
    seconds = round(time.monotonic() - since, 1)
    return json.dumps({"bytes": listing.size, "version": listing.version, "seconds": seconds})


def _list(source: Source, halt: Event, pause_s: float = 2.0) -> Listing:
    """Return what the source offers; it may be away for a while, as what is downloaded may be for longer."""
    for attempt in range(5):
        try:
            return source.list_files()
        except TransientFetchError as error:
            if attempt == 4 or halt.wait(pause_s * 2**attempt):
                raise
            log.warning("source_not_listed", extra={"error": str(error)})
    raise AssertionError


def source_of(body: Mapping[str, Any], env: Mapping[str, str]) -> Source:
    """Return the source that the operator described.

    Raises:
        FetchError: the endpoint is no URL, or a token or key cannot be sent.
    """
    if body["endpoint"] and not is_http_url(body["endpoint"]):
        raise FetchError(f"{body['endpoint']} is no URL of a server; correct endpoint in spec.model.source")
    for name in SECRET_VARIABLES:
        if re.fullmatch(r"[!-~]*", env.get(name, "").strip()) is None:
            raise FetchError(
                f"{name} has a character that no token or key has, such as a blank; correct the Secret that "
                "spec.model.source names"
            )
    if body["kind"] == "s3" and bool(env.get("AWS_ACCESS_KEY_ID")) != bool(env.get("AWS_SECRET_ACCESS_KEY")):
        raise FetchError(
            "one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is empty; correct the Secret of "
            "spec.model.source.s3.credentialsSecretRef"
        )
    patterns = {"include": tuple(body.get("include") or ()), "exclude": tuple(body.get("exclude") or ())}
    if body["kind"] == "hub":
        return Hub(
            endpoint=body["endpoint"],
            repo=body["repo"],
            revision=body["revision"],
            token=env.get("HF_TOKEN", "").strip(),
            **patterns,
        )
    return Bucket(
        endpoint=body["endpoint"],
        bucket=body["bucket"],
        prefix=body["prefix"],
        region=body["region"],
        env=env,
        **patterns,
    )


class _ProgressReporter:
    """Reports the progress of a download to Redis, in a thread of its own, while it is entered."""

    def __init__(self, model: ModelFolder, listing: Listing, env: Mapping[str, str]) -> None:
        self._model, self._total = model, listing.size
        namespace, service, _ = model.name.split("/")
        self._key = progress_key(namespace, service, env.get("POD_NAME", ""))
        self._redis = _redis(env)
        self._over = Event()
        self._thread = Thread(target=self._tell, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=5)

    def _tell(self) -> None:
        seen = [(time.monotonic(), self._model.size())]
        while True:
            now, done = time.monotonic(), self._model.size()
            seen = [item for item in seen if now - item[0] <= RATE_OVER_S] + [(now, done)]
            since, before = seen[0]
            rate = (done - before) / (now - since) if now > since else 0.0
            if self._redis is not None:
                try:
                    self._redis.set(self._key, progress_value(Progress(done, self._total, max(0.0, rate))), ex=TOLD_S)
                except (RedisError, OSError) as error:
                    log.info("progress_not_reported", extra={"error": type(error).__name__})
            if self._over.wait(TELL_S):
                return


def _redis(env: Mapping[str, str]) -> "redis.Redis | None":
    """Return the client of the service's Redis; its URL is in a file where it has a password."""
    file = env.get("WEFT_REDIS_URL_FILE", "")
    url = Path(file).read_text(encoding="utf-8").strip() if file else env.get("WEFT_REDIS_URL", "")
    return redis.Redis.from_url(url, socket_timeout=2.0, socket_connect_timeout=2.0) if url else None


if __name__ == "__main__":
    sys.exit(main())
