"""The program of a profiling pod: wait for the engine, run ``weft profile engine``, and report the result.

It has no token of the API server. The result is its termination message (``termination_message``), which the operator
reads from the pod's status.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Timer

import httpx
import yaml

from weft_operator.profiling.termination_message import MessageError, packed

PROFILE = (sys.executable, "-m", "weft_planner", "profile")
TERMINATION_FILE = "/dev/termination-log"
CONFIG_VARIABLE = "WEFT_MODEL_CONFIG"
"""The model's config.json, where the spec has it."""
SPARE_S = 180.0
"""Time beyond the budget: for the last timing and for fitting."""
READER_S = 300.0
"""How long after the measured engine the reading one, which was started first, may become ready."""
_WORDS = 600


class MeasurementFailed(Exception):  # noqa: N818 - an end, not a bug
    """Report why the measurement failed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write the result; return 0 if it has figures."""
    given = _arguments(argv)
    try:
        said, code = _measured(given), 0
    except (MeasurementFailed, MessageError) as error:
        said, code = str(error)[:_WORDS], 1
    Path(given.say).write_text(said, encoding="utf-8")
    sys.stdout.write(f"{said if code else 'measured'}\n")
    return code


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="weft_operator.profiling.measure")
    parser.add_argument("url")
    parser.add_argument("--decode-url", default="")
    parser.add_argument("--degree", type=int, required=True)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--link", default="inter-node")
    parser.add_argument("--budget", type=float, required=True)
    parser.add_argument("--start-seconds", type=float, required=True)
    parser.add_argument("--say", default=TERMINATION_FILE)
    return parser.parse_args(argv)


def _measured(given: argparse.Namespace) -> str:
    deadline = time.monotonic() + given.start_seconds
    await_engine(given.url, deadline)
    notes: dict[str, str] = {}
    reader = given.decode_url
    if reader:
        try:
            await_engine(reader, min(deadline, time.monotonic() + READER_S))
        except MeasurementFailed as error:
            reader, notes["transfers"] = "", f"not measured: {error}"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        fitted = place / "profile.yaml"
        words = ["engine", given.url, "--degree", str(given.degree), "--link", given.link]
        words += ["--decode-url", reader, "--decode-degree", str(given.degree)] if reader else []
        words += ["--gpu", given.gpu, "--model", given.model, "--budget", f"{given.budget:g}s", *_config(place)]
        run_profile([*words, "-o", str(fitted)], given.budget + SPARE_S)
        profile = yaml.safe_load(fitted.read_text(encoding="utf-8"))["spec"]
        profile["provenance"] = {**(profile.get("provenance") or {}), **notes}
        return packed({"profile": profile})


def await_engine(url: str, deadline: float, *, pause_s: float = 2.0) -> None:
    """Wait until an engine lists its models; ``deadline`` is by the monotonic clock.

    Raises:
        MeasurementFailed: it did not in time.
    """
    said = "no answer"
    while time.monotonic() < deadline:
        try:
            with httpx.stream("GET", f"{url}/v1/models", timeout=5.0) as answer:
                if answer.status_code == 200:
                    return
                said = f"status {answer.status_code}"
        except httpx.HTTPError as error:
            said = type(error).__name__
        time.sleep(pause_s)
    raise MeasurementFailed(f"the engine at {url} was not ready in time ({said})")


def _config(place: Path) -> list[str]:
    text = os.environ.get(CONFIG_VARIABLE, "")
    if not text:
        return []
    path = place / "config.json"
    path.write_text(text, encoding="utf-8")
    return ["--config", str(path)]


def run_profile(words: Sequence[str], limit_s: float) -> None:
    """Run ``weft profile`` with these arguments and a timeout in seconds; its stderr is copied to the log at once.

    Raises:
        MeasurementFailed: it failed or timed out; the last line of its stderr is the reason.
    """
    last, over = "", Event()
    with subprocess.Popen([*PROFILE, *words], stderr=subprocess.PIPE, text=True, errors="replace") as child:

        def end() -> None:
            over.set()
            child.kill()

        limit = Timer(limit_s, end)
        limit.start()
        try:
            for line in child.stderr or ():
                sys.stderr.write(line)
                last = line.strip() or last
            child.wait()
        finally:
            limit.cancel()
    if child.returncode and over.is_set():
        raise MeasurementFailed(f"measuring took longer than {limit_s:.0f} s")
    if child.returncode:
        raise MeasurementFailed(last.removeprefix("Error: ") or f"weft profile ended with {child.returncode}")


if __name__ == "__main__":
    raise SystemExit(main())
