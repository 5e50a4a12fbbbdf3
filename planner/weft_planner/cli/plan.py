"""``weft plan -f FILE``: show a service's plan before it is applied, with predictions, alternatives and reasons."""

import argparse
import sys
from pathlib import Path

from weft_core.plan import canonical_json


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verb."""
    parser = subparsers.add_parser("plan", help="plan a DisaggInferenceService manifest and show why")
    parser.add_argument("-f", "--file", required=True, metavar="FILE", help="the manifest (YAML), - for stdin")
    parser.add_argument("--name", help="which service, when the file has several")
    parser.add_argument(
        "--profile", action="append", default=[], metavar="FILE", help="a CostProfile that spec.profile.ref names"
    )
    parser.add_argument("--gpus", type=int, help="plan for this many GPUs instead of spec.capacity.gpus")
    parser.add_argument("--objective", choices=["latency", "cost"], help="instead of spec.planning.objective")
    parser.add_argument("-o", "--output", choices=["table", "json", "yaml"], default="table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the plan; 0 with a plan, 1 when none is possible, 2 for a manifest that cannot be read."""
    from weft_planner.manifest import choose_service, name_of, read_documents, request_from_service
    from weft_planner.solve import answer
    from weft_planner.tables import render
    from weft_planner.workload import RequestError, request_of

    try:
        documents = read_documents(_read(args.file))
        profiles = [document for path in args.profile for document in read_documents(_read(path))]
        service = choose_service(documents, args.name)
        request = request_from_service(service, [*documents, *profiles])
        if args.gpus is not None or args.objective is not None:
            body = request.model_dump(by_alias=True)
            body["capacity"]["gpus"] = request.capacity.gpus if args.gpus is None else args.gpus
            body["objective"] = args.objective or request.objective
            request = request_of(body)
    except (RequestError, OSError, UnicodeDecodeError) as error:
        print(f"{'stdin' if args.file == '-' else args.file}: {error}", file=sys.stderr)
        return 2
    result = answer(request)
    if args.output == "json":
        print(canonical_json(result))
    elif args.output == "yaml":
        import yaml

        print(yaml.safe_dump(result, sort_keys=True), end="")
    else:
        print(render(result, request=request, name=name_of(service)))
    return 0 if result["status"] == "ok" else 1


def _read(path: str) -> str:
    return sys.stdin.read() if path == "-" else Path(path).read_text()
