"""Measure how well the simulator predicts the live stack on mock engines of the same cost profile.

For each policy a whole stack runs on loopback (coordinator, sidecars, mock engines, Redis). The very sessions that are
simulated are held with it, at shares of the capacity that the simulator finds: the rate at which 9 sessions of 10 meet
the SLO. Both sides are judged by the same code. What is predicted is the mean of ten runs that differ by milliseconds,
under policies that choose at random of 40, and a measurement may then be as far off as single ones of these are apart;
what routers and client add to a lone round's TTFT is measured first and added. The targets hold for P95 TTFT, mean ITL
and attainment; the other columns tell more. Exit status 1 when a target is missed.
"""

import argparse
import logging
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from weft_core.policies.registry import MODES, POLICIES
from weft_e2e.agreement.comparison import ATTAINMENT_WITHIN, ITL_WITHIN, TTFT_WITHIN, Comparison, Figure
from weft_e2e.agreement.live import ReplayFailedError
from weft_e2e.agreement.running import Study, run
from weft_e2e.agreement.scenario import GPU, MODEL, SLOWER, default_scenario


def cells(figure: Figure) -> str:
    """Return predicted, measured and how far they are apart: milliseconds and a share, or shares and points."""
    if figure.share:
        return f"{100 * figure.predicted:7.1f} {100 * figure.measured:7.1f} {100 * figure.off:+6.1f} "
    return f"{1e3 * figure.predicted:7.1f} {1e3 * figure.measured:7.1f} {100 * figure.off:+6.1f}%"


def line(one: Comparison) -> str:
    """Return a row of the table."""
    verdict = ", ".join(figure.name for figure in one.disagreements) or "met"
    shown = "  ".join(cells(figure) for figure in one.figures)
    return f"{one.policy:11} {one.load:4.0%} {one.rate:6.2f} {one.sessions:5d} {one.rounds:6d}  {shown}  {verdict}"


def details(one: Comparison) -> str:
    """Return the figures that have no target."""
    told = [f"{figure.name} {' '.join(cells(figure).split())}" for figure in one.others]
    waited = "" if one.waited_s is None else f", {1e3 * one.waited_s:.0f} ms of waiting for a core"
    return f"    a round: {1e3 * one.overhead_s:.1f} ms overhead{waited}; " + "; ".join([*told, *one.starved])


def main() -> int:
    """Measure and print; return 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--policies", default="remote-jsq,weft", help="such as weft/imd, separated by commas (default %(default)s)"
    )
    parser.add_argument("--loads", default="0.8,0.55,0.3", help="shares of the capacity (default %(default)s)")
    parser.add_argument("--rounds", type=float, default=180.0, help="at each load, on average (default %(default)s)")
    parser.add_argument("--prefill", type=int, default=2, help="prefill workers (default %(default)s)")
    parser.add_argument("--decode", type=int, default=1, help="decode workers (default %(default)s)")
    parser.add_argument("--both", type=int, default=0, help="workers with both roles (default %(default)s)")
    parser.add_argument(
        "--slower", type=float, default=SLOWER, help="than on the GPU: more for a busy machine (default %(default)g)"
    )
    parser.add_argument("--seed", type=int, default=4, help="of the sessions (default %(default)s)")
    parser.add_argument("--no-reads", action="store_true", help="engines that read no history back")
    options = parser.parse_args()
    policies, loads = options.policies.split(","), [float(load) for load in options.loads.split(",")]
    known = {*POLICIES, *(f"weft/{mode}" for mode in MODES)}
    unknown = set(policies) - known
    if unknown:
        parser.error(f"--policies: {', '.join(sorted(unknown))}: choose from {', '.join(sorted(known))}")
    if shutil.which("redis-server") is None:
        parser.error("redis-server is missing: apt-get install redis-server")
    logging.basicConfig(level=logging.ERROR)
    scenario = replace(
        default_scenario(options.slower),
        prefill=options.prefill,
        decode=options.decode,
        both=options.both,
        reads=not options.no_reads,
    )
    study = Study(scenario, dict.fromkeys(policies, tuple(loads)), rounds=options.rounds, seed=options.seed)
    print(
        f"{MODEL} on {GPU}, {scenario.slow:g} times slower; {scenario.layout}; {options.rounds:g} rounds a row (mean)"
    )
    print(f"{'':36}  {'P95 TTFT, ms':23}  {'mean ITL, ms':23}  {'attainment, %':23}")
    sides = f"{'sim.':>7} {'live':>7} {'off':>7}"
    print(
        f"{'policy':11} {'load':>4} {'rate':>6} {'sess.':>5} {'rounds':>6}  {sides}  {sides}  {sides}  target",
        flush=True,
    )

    def done(one: Comparison) -> None:
        print(f"{line(one)}\n{details(one)}", flush=True)

    try:
        with tempfile.TemporaryDirectory(prefix="weft-agreement-") as folder:
            found = run(study, Path(folder), done=done)
    except (ReplayFailedError, RuntimeError, TimeoutError) as error:
        print(f"agreement: {error}", file=sys.stderr)
        return 1
    missed = any(one.disagreements for one in found)
    limits = f"P95 TTFT {TTFT_WITHIN:.0%}, mean ITL {ITL_WITHIN:.0%}, attainment {100 * ATTAINMENT_WITHIN:.0f} points"
    print(f"targets: {limits}: {'missed' if missed else 'met'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
