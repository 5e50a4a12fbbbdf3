"""Profile two real engines, time shapes that the profile has not seen, plan with it, deploy, replay, and compare.

    make bench-profile [BENCH_ARGS=--quick]

Two vLLM engines of the CPU build with the tiny model, a core each, which client and router share with them. Exit
status 0: everything ran, and errors on held-out shapes are within their aims. 1: something failed, or an aim is missed.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import yaml
from bench.paper.page import machine
from bench.profile.engines import NoEnginesError, made, pair
from bench.profile.figures import AIMS, Errors, errors
from bench.profile.rounds import compared, table
from bench.profile.timing import held_out, profiled

from weft_planner.profiling.knowledge import manifest
from weft_planner.tables.profile import profile_table

TWO_CORES = (
    "Both engines, the router and the client share this machine's cores: a round's prefill and another's steps are as "
    "slow as their neighbours let them be, which the simulator does not know, and P95 over few rounds is one round."
)


def main() -> int:
    """Run all of it and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer shapes and rounds: three minutes")
    parser.add_argument("--keep", type=Path, help="write the profile (YAML) here, too")
    given = parser.parse_args()
    budget_s, held_out_s, rounds = (40.0, 24.0, 24) if given.quick else (120.0, 80.0, 120)
    began = time.monotonic()
    try:
        env = made()
    except NoEnginesError as error:
        print(f"bench-profile: {error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as name, pair(Path(name)) as engines:
        print(f"engines serve after {time.monotonic() - began:.0f} s", flush=True)
        before = held_out(engines, budget_s=held_out_s / 2)
        found = profiled(engines, env.model, budget_s=budget_s)
        print(profile_table(found.profile, notes=found.run.notes), flush=True)
        if given.keep:
            given.keep.write_text(yaml.safe_dump(manifest(found.profile), sort_keys=False))
        unseen = held_out(engines, budget_s=held_out_s / 2, before=before)
        held = errors(found.profile, unseen)
        print(errors_table(held), flush=True)
        result = compared(engines, found.profile, Path(name), rounds=rounds)
    print(f"\n{result.sessions} sessions, {result.rounds} rounds, always remote; {result.plan}\n")
    print(table(result.rows))
    print(f"\n{TWO_CORES} {result.busy}.\n{machine()}; {time.monotonic() - began:.0f} s in all")
    return 1 if any(one.met is False for one in held) else 0


def errors_table(found: list[Errors]) -> str:
    """Lay out errors on held-out shapes with their aims."""
    lines = ["", "| held out | shapes | median error | P95 error | aim |", "| --- | --- | --- | --- | --- |"]
    for one in found:
        aim = AIMS.get(one.name)
        words = f"{aim[0]:.0%}, {aim[1]:.0%}: {'met' if one.met else 'MISSED'}" if aim else "none"
        lines.append(f"| {one.name} | {one.shapes} | {one.median:.1%} | {one.p95:.1%} | {words} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
