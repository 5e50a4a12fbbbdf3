"""Load tools that nobody here wrote: run as docs/clients.md shows it, and what they report."""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from weft_mock.tokenizer_files import write_tokenizer

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/clients.md"
URL = "http://127.0.0.1:8080"
"""The service on the page."""
TOKENIZER = "tokenizer"
"""The folder on the page."""
WHERE = "WEFT_LOAD_TOOLS"
"""The variable with the folders of the tools' programs."""
NOWHERE = "http://127.0.0.1:9"
"""Where nobody listens: whoever asks a hub for something fails at once."""
LIMIT_S = 400.0


@dataclass(frozen=True, slots=True)
class Shown:
    """What a section of the page shows: each program's command line, and the content of files."""

    commands: Mapping[str, tuple[str, ...]]
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Report:
    """What a tool says: how many requests were answered and failed, and the means of TTFT and ITL."""

    answered: int
    failed: int
    ttft_s: float
    itl_s: float


def shown(page: str, title: str = "Load tools") -> Shown:
    """Read a section. A file's name is the comment in its first line."""
    section = re.split(r"^## ", page.split(f"\n## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    commands: dict[str, tuple[str, ...]] = {}
    files: dict[str, str] = {}
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
        if language == "yaml":
            files[block.split("\n", 1)[0].removeprefix("# ")] = block
        else:
            lines = (shlex.split(line, comments=True) for line in block.replace("\\\n", " ").splitlines())
            commands |= {words[0]: tuple(words) for words in lines if words}
    return Shown(commands, files)


def program(name: str) -> Path:
    """Return where a tool's program is."""
    found = shutil.which(name, path=os.environ.get(WHERE, ""))
    assert found is not None, f"{name} is not in {WHERE}"
    return Path(found)


def run_tool(
    found: Path, arguments: Sequence[str], files: Mapping[str, str], *,
    url: str, folder: Path, env: Mapping[str, str] = MappingProxyType({}),
) -> str:  # fmt: skip
    """Run a command of the page in a folder against another address, without a network, and return what it said."""
    write_tokenizer(folder / TOKENIZER)
    for name, text in files.items():
        (folder / name).write_text(text.replace(URL, url))
    # Not HF_HUB_OFFLINE: AIPerf then looks for a tokenizer among its downloads only, whatever folder it is given.
    offline = {"HF_ENDPOINT": NOWHERE, "HOME": str(folder)}
    log = folder / "said"
    with log.open("wb") as out:
        ended = subprocess.run(
            [str(found), *(word.replace(URL, url) for word in arguments)],
            cwd=folder,
            env={**os.environ, **offline, "PATH": f"{found.parent}:{os.environ['PATH']}", **env},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
    said = log.read_text(errors="replace")
    assert ended.returncode == 0, said[-6000:]
    return said


def of_aiperf(folder: Path) -> Report:
    """Read the summary of AIPerf, which is in milliseconds."""
    found = _only(folder, "profile_export_aiperf.json")
    return Report(
        answered=round(found["request_count"]["avg"]),
        failed=round((found.get("error_request_count") or {"avg": 0})["avg"]),
        ttft_s=found["time_to_first_token"]["avg"] / 1e3,
        itl_s=found["inter_token_latency"]["avg"] / 1e3,
    )


def of_guidellm(folder: Path) -> Report:
    """Read the report of GuideLLM, which is in milliseconds."""
    (benchmark,) = _only(folder, "guidellm.json")["benchmarks"]
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]
    return Report(
        answered=totals["successful"],
        failed=totals["errored"] + totals["incomplete"],
        ttft_s=metrics["time_to_first_token_ms"]["successful"]["mean"] / 1e3,
        itl_s=metrics["inter_token_latency_ms"]["successful"]["mean"] / 1e3,
    )


def of_inference_perf(folder: Path) -> Report:
    """Read the summary of inference-perf, which is in seconds."""
    found = _only(folder, "summary_lifecycle_metrics.json")
    latency = found["successes"]["latency"]
    return Report(
        answered=found["successes"]["count"],
        failed=found["failures"]["count"],
        ttft_s=latency["time_to_first_token"]["mean"],
        itl_s=latency["inter_token_latency"]["mean"],
    )


def of_vllm(folder: Path) -> Report:
    """Read the result of vLLM's benchmark, which is in milliseconds.

    Its gaps begin with that between the role and the first token, which come together: its time per output token is
    what others call ITL.
    """
    found = _only(folder, "vllm.json")
    return Report(
        answered=found["completed"],
        failed=found["failed"],
        ttft_s=found["mean_ttft_ms"] / 1e3,
        itl_s=found["mean_tpot_ms"] / 1e3,
    )


def _only(folder: Path, name: str) -> dict[str, Any]:
    """Read the one file of this name that a tool has written."""
    (path,) = folder.rglob(name)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


READERS: Mapping[str, Callable[[Path], Report]] = {
    "aiperf": of_aiperf,
    "guidellm": of_guidellm,
    "inference-perf": of_inference_perf,
    "vllm": of_vllm,
}
