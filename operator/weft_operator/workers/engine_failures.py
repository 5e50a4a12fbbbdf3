"""Say why an engine's container ended, from the last words that the kubelet keeps of its log, and what helps."""

import re
from collections.abc import Callable

MAX_WORDS = 200
"""Characters of an engine's own error: a condition holds other things, too."""

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
            "take an image with g++, or set TORCH_COMPILE_DISABLE=1 in spec.engine.env"
        ),
    ),
    (
        re.compile(r"WEFT_ENGINE_PROOF_FILE: \S+ (?:cannot be read|is empty)"),
        lambda _: "its plug-in cannot read the proof; remove what spec.podTemplates does to the engine's volumes",
    ),
)
"""What vLLM 0.32 and the plug-in say; the first that is found tells the cause."""

_ERROR = re.compile(r"^((?:\w+\.)*\w+(?:Error|Exception)): (.+)$", re.MULTILINE)


def failure_hint(last_words: str) -> str:
    """Return the cause and the remedy in words that stay the same from one attempt to the next; "" where none is known.

    An error without a known remedy is given as the engine said it: its log has what led to it.
    """
    for pattern, words in _CAUSES:
        found = pattern.search(last_words)
        if found is not None:
            return words(found)
    errors = _ERROR.findall(last_words)
    if not errors:
        return ""
    kind, said = errors[-1]
    return f"{kind.rpartition('.')[2]}: {said[:MAX_WORDS]}; see its log"
