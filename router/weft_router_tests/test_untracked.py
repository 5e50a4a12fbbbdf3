"""What sessions keep: compiled, the collector does not know of it, and it is freed all the same."""

import gc
import os
import subprocess
import sys

from weft_core.policies.snapshot import PrefillTask
from weft_router.context import COMPILED
from weft_router.engines.handles import KvHandle
from weft_router.openai.prompt_history import PromptHistory
from weft_router.routing.in_flight_prefills import InFlightPrefill
from weft_router.sessions.session import Session
from weft_router.state.bindings import _Binding
from weft_router.state.store import _Entry
from weft_router.telemetry.session_latency import SessionLatency

LEVELS = 300
"""CPython puts off what is freed more than 50 levels deep."""


def kept() -> list[object]:
    """Return one object of each class of which sessions keep some."""
    task = PrefillTask(0, 1)
    handle = KvHandle({}, 1, 0.0, None)
    prompt_history = PromptHistory("text", b"", ())
    session = Session(prompt_history, 1, 1, handle, 1, 0.0, {})
    return [
        handle,
        session,
        prompt_history,
        InFlightPrefill("a", task, 0.0),
        SessionLatency(),
        _Binding("w", 0.0, 0.0),
        _Entry("w", 0.0),
    ]


def test_the_collector_knows_of_nothing_that_sessions_keep_when_it_is_compiled() -> None:
    known = {gc.is_tracked(one) for one in kept()}
    assert known == ({False} if COMPILED else {True})


def free_deeply() -> None:
    """Free all of that at each level of a deep list, and have the memory beside it looked at."""
    for _ in range(20):
        deep: list[object] = []
        for _ in range(LEVELS):
            deep = [deep, *kept()]
        del deep
        gc.collect()


def test_what_sessions_keep_is_freed_at_any_depth() -> None:
    """An object that the collector does not know must not be put off: it has no place for that."""
    script = f"from {__name__} import free_deeply, COMPILED; assert COMPILED is {COMPILED}; free_deeply()"
    words = [sys.executable, "-c", script]
    path = os.pathsep.join(sys.path)
    checked = {**os.environ, "PYTHONMALLOC": "debug", "PYTHONPATH": path}
    done = subprocess.run(words, env=checked, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
