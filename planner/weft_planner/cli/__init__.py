"""The ``weft`` command: finds its verbs among the installed parts and loads only the one that is called."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points

GROUP = "weft.commands"
Register = Callable[["argparse._SubParsersAction[argparse.ArgumentParser]"], object]


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``weft VERB …`` and return its exit status; 2 for a command line that makes no sense."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verbs = {point.name: point for point in entry_points(group=GROUP)}
    called = arguments[0] if arguments else ""
    parser = argparse.ArgumentParser(prog="weft", description="Multi-round LLM inference on Kubernetes.")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    wanted = [verbs[called]] if called in verbs else [verbs[name] for name in sorted(verbs)]
    for point in wanted:
        _add(point, subparsers, must_load=called == point.name)
    args = parser.parse_args(arguments)
    try:
        return int(args.run(args))
    except ModuleNotFoundError as error:  # an image holds only the parts it runs
        sys.exit(f"weft {args.verb}: this installation lacks {error.name}; install weft with the part's extra")
    except BrokenPipeError:  # the reader (head, less) has seen enough
        sys.stderr.close()
        return 0


def _add(
    point: EntryPoint, subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]", *, must_load: bool
) -> None:
    """Register a verb; one whose packages are not installed is listed as such and only fails when called."""
    try:
        register: Register = point.load()
    except ImportError as error:
        if must_load:
            sys.exit(f"weft {point.name}: this installation lacks it ({error}); install weft with the part's extra")
        subparsers.add_parser(point.name, help="(not installed)")
        return
    register(subparsers)
