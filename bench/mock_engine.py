"""Measure what one mock engine costs: CPU per streamed token, and how truly it keeps its profile's time.

Run ``python bench/mock_engine.py [--streams 16] [--tokens 300] [--step-ms 33]``. The engine is its own process; its CPU
time is read before and after, so the client's own work is not counted.
"""

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from weft_core.cost import CostProfile, DecodePiece, DegreeCosts, PrefillPiece, TransferCost
from weft_core.profile_json import profile_to_json

PORT = 18765
PROMPT = "word " * 500


def profile(step_seconds: float) -> CostProfile:
    """Return a profile whose decode step takes a constant time."""
    costs = DegreeCosts(
        prefill=(PrefillPiece(alpha=0.001),),
        decode=(DecodePiece(alpha=step_seconds),),
        weight_bytes_per_gpu=1,
        kv_capacity_tokens=400_000,
    )
    return CostProfile(
        model="bench",
        gpu="none",
        engine="mock",
        kv_bytes_per_token=1,
        degrees={1: costs},
        transfers={(1, 1, "inter-node"): TransferCost(alpha=0.0, per_token=0.0)},
    )


def cpu_seconds(pid: int) -> float:
    """Return the time all threads of a process were on a CPU so far, as the kernel's scheduler counts it."""
    stats = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(stat.read_text().split()[0]) for stat in stats) / 1e9


def await_health(process: "subprocess.Popen[bytes]") -> None:
    """Wait until the engine serves."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit("the engine did not start")
        try:
            socket.create_connection(("127.0.0.1", PORT), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit("the engine did not answer")


async def stream(tokens: int) -> list[float]:
    """Read one streamed answer and return when each token came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT, limit=2**20)
    body = json.dumps(
        {"messages": [{"role": "user", "content": PROMPT}], "stream": True, "max_tokens": tokens, "ignore_eos": True}
    ).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    times: list[float] = []
    seen = 0
    while seen < tokens:
        data = await reader.read(65536)
        if not data:
            raise SystemExit("the engine closed the stream")
        now = time.perf_counter()
        count = data.count(b'"content":" ') + data.count(b'"finish_reason":"length"')
        times += [now] * count
        # The first word of an answer has no space before it.
        seen = len(times) + 1
    writer.close()
    return times


async def run(streams: int, tokens: int, pid: int) -> None:
    """Drive the engine and print the figures."""
    await asyncio.gather(*(stream(20) for _ in range(streams)))
    before, began = cpu_seconds(pid), time.perf_counter()
    runs = await asyncio.gather(*(stream(tokens) for _ in range(streams)))
    used, took = cpu_seconds(pid) - before, time.perf_counter() - began
    gaps = sorted(b - a for times in runs for a, b in pairwise(times))
    events = streams * tokens
    say = sys.stdout.write
    say(f"{streams} streams x {tokens} tokens: {events / took:,.0f} events/s for {took:.1f} s\n")
    say(f"engine CPU: {used / events * 1e6:.1f} us per event, {used / took:.1%} of one core\n")
    say(
        f"inter-token gap: mean {statistics.mean(gaps) * 1e3:.3f} ms, P50 {gaps[len(gaps) // 2] * 1e3:.2f} ms, "
        f"P99 {gaps[int(len(gaps) * 0.99)] * 1e3:.2f} ms, largest {gaps[-1] * 1e3:.2f} ms\n"
    )


def main() -> int:
    """Start the engine, measure, stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--step-ms", type=float, default=33.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        file.write_text(json.dumps(profile_to_json(profile(options.step_ms / 1e3))))
        command = [sys.executable, "-m", "weft_mock", "--model", "bench", "--profile", str(file)]
        command += ["--degree", "1", "--listen", f"127.0.0.1:{PORT}", "--side-channel-port", str(PORT + 1)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            await_health(process)
            asyncio.run(run(options.streams, options.tokens, process.pid))
        finally:
            process.terminate()
            process.wait(10)
    return 0


if __name__ == "__main__":
    sys.exit(main())
