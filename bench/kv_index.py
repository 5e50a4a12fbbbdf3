"""Measure the index of KV blocks: ``python -m bench.kv_index [BLOCKS]``.

Prints its size, the time of an event for each block that it names, and the time to look up a prompt of 32k tokens:
with its keys known, as a session's are, and from its token ids. Times are of the processor, the least of several runs,
so that a busy machine counts little.
"""

import os
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from random import Random

from weft_core.kv_block_keys import START, block_keys, id_bytes
from weft_core.kv_index import BlockIndex

BLOCKS = 1_000_000
BLOCK_TOKENS = 16
PROMPT_TOKENS = 32_768
RUN = 64
"""Blocks of one event."""
GPU, CPU = 0, 1
RUNS = 5


def fastest(work: Callable[[], object], runs: int = RUNS) -> float:
    """Return the seconds of the fastest run."""
    best = float("inf")
    for _ in range(runs):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best


def resident() -> int:
    """Return the bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def events(count: int, random: Random) -> list[tuple[list[int], bytes, int | None]]:
    """Return prompts as an engine reports them: hashes and token ids of runs of blocks, and what each run follows."""
    found: list[tuple[list[int], bytes, int | None]] = []
    per_prompt = PROMPT_TOKENS // BLOCK_TOKENS
    for at in range(0, count, RUN):
        hashes = [random.getrandbits(64) for _ in range(min(RUN, count - at))]
        ids = array("I", (random.getrandbits(17) for _ in range(len(hashes) * BLOCK_TOKENS)))
        found.append((hashes, ids.tobytes(), found[-1][0][-1] if at % per_prompt else None))
    return found


def main(blocks: int) -> None:
    """Fill an index, drop and store a part of it again, and look prompts up."""
    random = Random(1)  # noqa: S311 - made-up prompts
    stored = events(blocks, random)
    before = resident()
    index = BlockIndex(limit=blocks)

    def store(part: list[tuple[list[int], bytes, int | None]]) -> None:
        for hashes, ids, parent in part:
            key = START if parent is None else index.key_of(parent)
            if key is None or index.store(GPU, hashes, block_keys(key, ids, BLOCK_TOKENS), parent) < len(hashes):
                raise SystemExit("a block was refused")

    began = time.process_time()
    store(stored)
    first = (time.process_time() - began) / blocks
    size = resident() - before
    per_prompt = PROMPT_TOKENS // BLOCK_TOKENS // RUN
    part = stored[: per_prompt * 16]
    named = sum(len(hashes) for hashes, _, _ in part)

    def remove() -> None:
        for hashes, _, _ in reversed(part):
            index.remove(GPU, hashes[::-1])

    def mark() -> None:
        for hashes, _, _ in part:
            index.mark(CPU, hashes)

    def unmark() -> None:
        for hashes, _, _ in part:
            index.remove(CPU, hashes)

    stores, removes, marks = [], [], []
    for _ in range(RUNS):
        marks.append(fastest(mark, 1))
        unmark()
        removes.append(fastest(remove, 1))
        stores.append(fastest(lambda: store(part), 1))

    ids = b"".join(one for _, one, _ in stored[:per_prompt])
    keys = block_keys(START, ids, BLOCK_TOKENS)
    whole = index.prefix(keys)
    index.remove(GPU, stored[per_prompt // 2][0][::-1])
    half = index.prefix(keys)
    if whole.gpu != len(keys) or half.gpu != per_prompt // 2 * RUN:
        raise SystemExit("the index is wrong")
    holes = fastest(lambda: index.prefix(keys))
    index.remove(GPU, [one for hashes, _, _ in stored[per_prompt // 2 : per_prompt][::-1] for one in hashes[::-1]])
    if index.holes:
        raise SystemExit("there are holes left")
    lookup = fastest(lambda: [index.prefix(keys) for _ in range(1000)]) / 1000
    token_ids = array("I")
    token_ids.frombytes(ids)
    hashed = fastest(lambda: index.prefix(block_keys(START, id_bytes(token_ids), BLOCK_TOKENS)))
    us = 1e6
    print(f"index of {blocks:,} blocks: {index.nbytes / 1e6:.0f} MB in arrays, process grew by {size / 1e6:.0f} MB")
    print(
        f"a block that is stored, from its token ids: {first * us:.2f} us at first, {min(stores) / named * us:.2f} us"
    )
    print(f"a block that is dropped: {min(removes) / named * us:.2f} us; one that goes to a further tier: "
          f"{min(marks) / named * us:.2f} us")  # fmt: skip
    print(f"look-up of {PROMPT_TOKENS:,} tokens, keys known: {lookup * us:.1f} us; while a block in the middle is "
          f"dropped and those after it are not: {holes * us:.0f} us; from token ids: {hashed * us:.0f} us")  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else BLOCKS)
