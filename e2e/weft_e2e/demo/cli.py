"""`weft demo`: the main job on the command line."""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from weft_e2e.cluster import ClusterError
from weft_e2e.demo import table
from weft_e2e.demo.install import take_down
from weft_e2e.demo.run import run
from weft_e2e.demo.settings import TRACE_LIMITS, Settings
from weft_e2e.demo.steps import DemoFailed
from weft_e2e.images import ImagesError
from weft_e2e.kube import KubeError
from weft_e2e.replay.selection import Limits
from weft_e2e.replay.traces import SOURCES, TraceError
from weft_e2e.waiting import WaitedTooLong

# Flag: field of Limits, words for the help.
_LIMITS = {
    "--sessions": ("sessions", "most sessions"),
    "--max-rounds": ("max_rounds", "most rounds of a session"),
    "--max-added": ("max_added_tokens", "most tokens a round adds"),
    "--max-decode": ("max_decode_tokens", "most tokens of an answer"),
    "--arrivals-within": ("arrivals_within_s", "seconds in which sessions arrive"),
    "--gap-scale": ("gap_scale", "factor on the pauses between rounds"),
    "--seed": ("seed", "seed of the choice"),
}


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verb ``demo``."""
    text = "a planned service on a real cluster, recorded agent sessions replayed through it, and a report"
    _add_commands(subparsers.add_parser("demo", help=text, description=text))


def main(argv: list[str] | None = None) -> int:
    """Run ``python -m weft_e2e.demo``."""
    parser = argparse.ArgumentParser(prog="weft demo")
    _add_commands(parser)
    args = parser.parse_args(argv)
    return int(args.run(args))


def _add_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="command", required=True, metavar="up|down")
    up = commands.add_parser("up", help="set up, serve, replay, report", description="Run the demo.")
    up.add_argument("--trace", choices=sorted(SOURCES), default="gaia_whowhen", help="recorded sessions to replay")
    for flag, (field, words) in _LIMITS.items():
        kind = type(getattr(Limits(), field))
        shown = ", ".join(f"{trace} {getattr(limits, field):g}" for trace, limits in TRACE_LIMITS.items())
        up.add_argument(flag, dest=field, type=kind, help=f"{words} (default: {shown})")
    up.add_argument("--out", type=Path, default=Path("out/demo"), help="folder of the report (default %(default)s)")
    up.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="more Helm values; may be repeated")
    up.add_argument("--registry", default=os.environ.get("REGISTRY"), help="registry of the images (also $REGISTRY)")
    up.add_argument("--tag", default=os.environ.get("TAG"), help="tag of the images (also $TAG)")
    up.set_defaults(run=_up)
    down = commands.add_parser("down", help="remove everything the demo made", description="Remove the demo.")
    down.set_defaults(run=_down)
    for command in (up, down):
        command.add_argument(
            "--context",
            default=os.environ.get("KUBE_CONTEXT") or None,
            help="kubectl context of your own cluster to use instead of a local one (also $KUBE_CONTEXT)",
        )


def _limits(args: argparse.Namespace) -> Limits:
    """Return the trace's limits with those that were given in their place."""
    given = {field: getattr(args, field) for field, _words in _LIMITS.values() if getattr(args, field) is not None}
    limits = TRACE_LIMITS[args.trace]
    given["min_rounds"] = min(limits.min_rounds, given.get("max_rounds", limits.max_rounds))
    return replace(limits, **given)


def _up(args: argparse.Namespace) -> int:
    try:
        settings = Settings(
            context=args.context,
            trace=args.trace,
            limits=_limits(args),
            out=args.out,
            helm_set=tuple(args.set),
            registry=args.registry or None,
            tag=args.tag or None,
        )
        facts = run(settings, _say)
    except (DemoFailed, ClusterError, ImagesError, KubeError, TraceError, WaitedTooLong, ValueError) as error:
        print(f"weft demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("weft demo: interrupted; `make demo-down` removes what was made", file=sys.stderr)
        return 130
    print(f"\n{table.render(facts)}\n")
    print(f"Report: {settings.out / 'report.html'} (in all {sum(s.seconds for s in facts.steps):.0f} s)\n")
    print("What to look at next:")
    for step in facts.next_steps:
        print(f"  - {step.replace('`', '')}")
    return 1 if facts.problems else 0


def _down(args: argparse.Namespace) -> int:
    try:
        take_down(args.context, _say)
    except (DemoFailed, ClusterError, KubeError) as error:
        print(f"weft demo: {error}", file=sys.stderr)
        return 1
    return 0


def _say(line: str) -> None:
    print(line, flush=True)
