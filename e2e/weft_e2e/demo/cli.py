"""`weft demo`: the main job on the command line."""

import argparse
import os
import sys
from pathlib import Path

from weft_e2e.cluster import ClusterError
from weft_e2e.demo import table
from weft_e2e.demo.install import take_down
from weft_e2e.demo.run import run
from weft_e2e.demo.settings import Settings
from weft_e2e.demo.steps import DemoFailed
from weft_e2e.images import ImagesError
from weft_e2e.kube import KubeError
from weft_e2e.replay.selection import Limits
from weft_e2e.replay.traces import SOURCES, TraceError
from weft_e2e.waiting import WaitedTooLong

_DEFAULT = Limits()


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
    up.add_argument("--sessions", type=int, default=_DEFAULT.sessions, help="most sessions (default %(default)s)")
    up.add_argument("--max-rounds", type=int, default=_DEFAULT.max_rounds, help="rounds per session (%(default)s)")
    up.add_argument(
        "--max-added", type=int, default=_DEFAULT.max_added_tokens, help="tokens a round adds (%(default)s)"
    )
    up.add_argument(
        "--max-decode", type=int, default=_DEFAULT.max_decode_tokens, help="tokens per answer (%(default)s)"
    )
    up.add_argument(
        "--arrivals-within", type=float, default=_DEFAULT.arrivals_within_s, help="seconds for arrivals (%(default)s)"
    )
    up.add_argument("--gap-scale", type=float, default=_DEFAULT.gap_scale, help="factor on pauses (%(default)s)")
    up.add_argument("--seed", type=int, default=_DEFAULT.seed, help="seed of the choice (default %(default)s)")
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


def _up(args: argparse.Namespace) -> int:
    try:
        settings = Settings(
            context=args.context,
            trace=args.trace,
            limits=Limits(
                sessions=args.sessions,
                min_rounds=min(_DEFAULT.min_rounds, args.max_rounds),
                max_rounds=args.max_rounds,
                max_added_tokens=args.max_added,
                max_decode_tokens=args.max_decode,
                arrivals_within_s=args.arrivals_within,
                gap_scale=args.gap_scale,
                seed=args.seed,
            ),
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
