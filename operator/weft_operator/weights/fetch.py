"""The program of the pods that fill a weights cache: download and verify a model, keep it locked, or remove it.

``fetch`` runs in a Job that fills a claim. ``hold`` runs in a sidecar beside an engine that loads from a folder of its
node: it downloads missing files, writes a ready file, and keeps the model's lock while the pod lives, so that no other
program removes it. ``remove`` deletes a model that no worker uses any more.

The pod has no token of the API server. The operator reads the result from the pod's termination message; exit code 2
means that another attempt does not help. Tokens and keys are read from environment variables and are in no argument,
message or log line.
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
from weft_operator.weights.progress import PROGRESS_TTL_S, Progress, progress_key, progress_value
from weft_operator.weights.remote import FetchError, Listing, Source, TransientFetchError
from weft_operator.weights.s3 import Bucket

SOURCE_VARIABLE = "WEFT_WEIGHTS_SOURCE"
"""What to download, as JSON; written by ``render.weights``."""
SECRET_VARIABLES = ("HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
TERMINATION_FILE = "/dev/termination-log"
READY_FILE = "/tmp/weights-ready"  # noqa: S108 - the pod's own
PERMANENT = 2
REPORT_INTERVAL_S = 2.0
RATE_WINDOW_S = 30.0
TOUCH_INTERVAL_S = 60.0
"""Interval at which ``hold`` sets the modification time of the lock file, which marks the model as in use."""
MAX_MESSAGE = 900
_STOPPED_EARLY = "ended before the download was complete; the next attempt resumes it"

log = logging.getLogger("weft_operator.weights.fetch")


def main(argv: Sequence[str] | None = None, env: Mapping[str, str] = os.environ) -> int:
    """Run one verb; return 0, 1 where another attempt may help, or 2 where none does."""
    options = _arguments(argv)
    configure("info")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs URLs, and those of storage hosts are signed
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    model = ModelFolder(options.root, options.model)
    try:
        message, code = _run_verb(options, model, env, stop), 0
    except FetchError as error:
        message, code = str(error), PERMANENT
    except TransientFetchError as error:
        message, code = str(error), 1
    except PermissionError as error:
        message, code = (
            f"{error.filename or options.root} cannot be written; make it writable for user 65532",
            PERMANENT,
        )
    except OSError as error:
        message, code = f"{error.strerror or type(error).__name__} on the volume", 1
    log.info("ended", extra={"code": code, "result": message})
    options.say.write_text(message[:MAX_MESSAGE], encoding="utf-8")
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


def _run_verb(options: argparse.Namespace, model: ModelFolder, env: Mapping[str, str], stop: Event) -> str:
    if options.verb == "remove":
        with model.locked(stop=stop) as lock:
            if lock is None:
                raise TransientFetchError(_STOPPED_EARLY)
            model.remove()
        return "removed"
    if options.verb == "fetch":
        return _fetch(model, env, stop)
    remove_unused(options.root, options.keep_unused_seconds, except_for=model.name)
    while not stop.is_set():
        message = _fetch(model, env, stop)
        with model.locked(shared=True, stop=stop) as lock:
            if lock is None or model.version() is None:
                continue  # another program removed it between the two locks
            options.ready.write_text(message, encoding="utf-8")
            while not stop.wait(TOUCH_INTERVAL_S):
                os.utime(lock.fileno())
    return "ended"


def _fetch(model: ModelFolder, env: Mapping[str, str], stop: Event) -> str:
    """Download the model unless its folder is complete; return its size and version as JSON.

    A download has an exclusive lock, so a shared lock waits for its end. Sidecars keep a shared lock for the lifetime
    of their worker. So no program may block on the exclusive lock: the second worker of a node would never start.
    """
    while not stop.is_set():
        with model.locked(shared=True, stop=stop) as lock:
            if lock is not None and (found := _describe_model(model)):
                return found
        with model.locked() as lock:
            if lock is not None:
                return _describe_model(model) or _download(model, env, stop)
        stop.wait(LOCK_WAIT_S)
    raise TransientFetchError(_STOPPED_EARLY)


def _describe_model(model: ModelFolder) -> str:
    """Return the size and version of a complete model as JSON, "" when it is not complete."""
    version = model.version()
    if version is None:
        return ""
    log.info("already_downloaded", extra={"model": model.name})
    return json.dumps({"bytes": model.size(), "version": version, "seconds": 0})


def _download(model: ModelFolder, env: Mapping[str, str], stop: Event) -> str:
    start = time.monotonic()
    with closing(source_of(json.loads(env[SOURCE_VARIABLE]), env)) as source:
        listing = _list(source, stop)
        folder = model.begin_download(listing)
        log.info("download_started", extra={"model": model.name, "files": len(listing.files), "bytes": listing.size})
        with _ProgressReporter(model, listing, env):
            download_all(source, listing, folder, stop=stop)
    if stop.is_set():
        raise TransientFetchError(_STOPPED_EARLY)
    model.publish(listing)
    seconds = round(time.monotonic() - start, 1)
    return json.dumps({"bytes": listing.size, "version": listing.version, "seconds": seconds})


def _list(source: Source, stop: Event, pause_s: float = 2.0) -> Listing:
    """Return the files of the source, with a few attempts while it does not answer."""
    for attempt in range(5):
        try:
            return source.list_files()
        except TransientFetchError as error:
            if attempt == 4 or stop.wait(pause_s * 2**attempt):
                raise
            log.warning("source_not_listed", extra={"error": str(error)})
    raise AssertionError


def source_of(body: Mapping[str, Any], env: Mapping[str, str]) -> Source:
    """Return the source that SOURCE_VARIABLE describes.

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
    """A context manager that reports the progress of a download to Redis, in a thread of its own."""

    def __init__(self, model: ModelFolder, listing: Listing, env: Mapping[str, str]) -> None:
        self._model, self._total = model, listing.size
        namespace, service, _ = model.name.split("/")
        self._key = progress_key(namespace, service, env.get("POD_NAME", ""))
        self._redis = _redis(env)
        self._stop = Event()
        self._thread = Thread(target=self._report_loop, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _report_loop(self) -> None:
        samples = [(time.monotonic(), self._model.size())]
        while True:
            now, downloaded = time.monotonic(), self._model.size()
            samples = [item for item in samples if now - item[0] <= RATE_WINDOW_S] + [(now, downloaded)]
            start, before = samples[0]
            rate = (downloaded - before) / (now - start) if now > start else 0.0
            if self._redis is not None:
                try:
                    self._redis.set(
                        self._key, progress_value(Progress(downloaded, self._total, max(0.0, rate))), ex=PROGRESS_TTL_S
                    )
                except (RedisError, OSError) as error:
                    log.info("progress_not_reported", extra={"error": type(error).__name__})
            if self._stop.wait(REPORT_INTERVAL_S):
                return


def _redis(env: Mapping[str, str]) -> "redis.Redis | None":
    """Return the client of the service's Redis; its URL is in a file where it has a password."""
    file = env.get("WEFT_REDIS_URL_FILE", "")
    url = Path(file).read_text(encoding="utf-8").strip() if file else env.get("WEFT_REDIS_URL", "")
    return redis.Redis.from_url(url, socket_timeout=2.0, socket_connect_timeout=2.0) if url else None


if __name__ == "__main__":
    sys.exit(main())
