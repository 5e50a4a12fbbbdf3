"""The cause and remedy of an engine's exit, from its termination message (the end of its log)."""

import re
from collections.abc import Callable

MAX_ERROR = 200
"""Longest part of an engine's own error in a message, in characters."""

_CAUSES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (
        re.compile(r"Repo id must be in the form [^:]*: '(/[^']{1,200})'"),
        lambda found: (
            f"there is no model at {found[1]}; correct spec.model.source.pvc.path, or put the model on the volume"
        ),
    ),
    (
        re.compile(r"Specify a local directory that contains a recognized configuration file"),
        lambda _: "the model's folder has no config.json; correct spec.model.source.pvc.path",
    ),
    (
        re.compile(r"Insufficient space in /dev/shm[^:]*: (\d+) MiB required"),
        lambda found: f"it needs {found[1]} MiB of /dev/shm; raise spec.engine.sharedMemory",
    ),
    (
        re.compile(r"InvalidCxxCompiler: No working C\+\+ compiler"),
        lambda _: (
            "vLLM compiles parts of its sampler with the first request that needs them, and finds no C++ compiler; "
            "use an image with g++, or set TORCH_COMPILE_DISABLE=1 in spec.engine.env"
        ),
    ),
    (
        re.compile(r"WEFT_ENGINE_PROOF_FILE: \S+ (?:cannot be read|is empty)"),
        lambda _: "its plug-in cannot read the proof; remove the patches of spec.podTemplates to the engine's volumes",
    ),
)
"""Messages of vLLM 0.32 and the plug-in, with their explanations; the first match counts."""

_ERROR = re.compile(r"^((?:\w+\.)*\w+(?:Error|Exception)): (.+)$", re.MULTILINE)


def failure_hint(log_tail: str) -> str:
    """Return the cause and the remedy, the same for each attempt; "" where none is known.

    An unknown error is returned as the engine wrote it.
    """
    for pattern, words in _CAUSES:
        found = pattern.search(log_tail)
        if found is not None:
            return words(found)
    errors = _ERROR.findall(log_tail)
    if not errors:
        return ""
    kind, text = errors[-1]
    return f"{kind.rpartition('.')[2]}: {text[:MAX_ERROR]}; see its log"
