"""Load tools that nobody here wrote hold conversations with ``weft local``, and measure what Weft's metrics say.

Each runs as docs/clients.md shows it. TTFT and ITL are compared as means: the tools measure them at the client, the
router between its sidecar and the engine, so both are made long enough that some milliseconds do not matter.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from weft_e2e.engines.environment import environment
from weft_e2e.metrics import Growth, growth
from weft_e2e_tests.load_tools import PAGE, READERS, ROOT, TOKENIZER, WHERE, program, run_tool, shown
from weft_e2e_tests.local_runs import SERVES, LocalRun, local_run
from weft_mock.tokenizer import encode
from weft_mock.tokenizer_files import write_tokenizer

installed = pytest.mark.skipif(not os.environ.get(WHERE), reason="needs load tools: make test-load-tools")
SHOWN = shown(PAGE.read_text())
SESSIONS, TURNS = 10, 3
REQUESTS = SESSIONS * TURNS
AGREES = 0.05
TEXTS = [
    "the scheduler moves the history of each session between the workers, 24 of them\n\n  at a time (or 25).",
    " \t x  y\n",
    "bab dod fuf",
]
CUT = """
import json, sys
from tokenizers import Tokenizer
made = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
print(json.dumps([made.encode(text).ids for text in json.loads(sys.argv[2])]))
"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRun]:
    """Give the service of the page."""
    _, _, _, file, *args = SHOWN.commands["weft"]
    with local_run(tmp_path_factory.mktemp("local"), *args, file=ROOT / file) as run:
        run.wait_for(SERVES)
        yield run


def measured(serving: LocalRun, tool: str, found: Path, folder: Path, **env: str) -> Growth:
    """Let a tool run, and hold what it reports to what Weft counted meanwhile."""
    _, *arguments = SHOWN.commands[tool]
    before = page_of(serving)
    said = run_tool(found, arguments, SHOWN.files, url=serving.url, folder=folder, env=env)
    grown = growth(before, page_of(serving))
    report = READERS[tool](folder)
    assert (report.answered, report.failed) == (REQUESTS, 0), said[-6000:]
    assert grown.total("weft_router_rounds_total") == REQUESTS
    assert report.ttft_s == pytest.approx(grown.mean("weft_router_ttft_seconds"), rel=AGREES)
    assert report.itl_s == pytest.approx(grown.mean("weft_router_itl_seconds"), rel=AGREES)
    return grown


def page_of(run: LocalRun) -> dict[str, str]:
    """Return the router's metrics page."""
    return {"router": httpx.get(f"{run.url}/metrics", timeout=10).raise_for_status().text}


@pytest.mark.component
@installed
@pytest.mark.parametrize("tool", ["aiperf", "guidellm", "inference-perf"])
def test_a_tool_holds_conversations_and_measures_what_the_router_does(
    serving: LocalRun, tool: str, tmp_path: Path
) -> None:
    """Later turns come without a header that names the session, and find its history."""
    grown = measured(serving, tool, program(tool), tmp_path)

    rounds = {phase: grown.total("weft_router_rounds_total", phase=phase) for phase in ("first", "later")}
    assert rounds == {"first": SESSIONS, "later": REQUESTS - SESSIONS}
    history = {
        kind: grown.total("weft_router_history_tokens_total", kind=kind) for kind in ("read", "cached", "recomputed")
    }
    assert history["recomputed"] == 0
    assert sum(history.values()) >= 0.95 * rounds["later"] * grown.mean("weft_router_round_history_tokens")


@pytest.mark.component
@pytest.mark.engine
@pytest.mark.skipif(not os.environ.get("WEFT_E2E_ENGINE"), reason="needs vLLM: make engine-env, then make e2e-engine")
def test_vllms_benchmark_measures_what_the_router_does(serving: LocalRun, tmp_path: Path) -> None:
    """It has single turns only."""
    env = environment()

    grown = measured(serving, "vllm", env.vllm, tmp_path, VLLM_CACHE_ROOT=str(env.cache), VLLM_PLUGINS="")

    assert grown.total("weft_router_rounds_total", phase="first") == REQUESTS


@pytest.mark.component
@installed
def test_their_library_cuts_texts_as_the_mock_engine_does(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / TOKENIZER)
    for tool in ("aiperf", "inference-perf"):
        command = [str(program(tool).with_name("python")), "-c", CUT, str(tmp_path / TOKENIZER), json.dumps(TEXTS)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        assert json.loads(done.stdout) == [encode(text) for text in TEXTS], tool


def test_the_page_shows_what_is_run() -> None:
    """Where no tool is installed, the page is read all the same."""
    assert set(SHOWN.commands) == {"weft", "python", *READERS}
    assert SHOWN.commands["inference-perf"][-1] in SHOWN.files
    assert SHOWN.commands["python"][1:] == ("-m", "weft_mock.tokenizer_files", TOKENIZER)
    assert (ROOT / SHOWN.commands["weft"][3]).exists()
