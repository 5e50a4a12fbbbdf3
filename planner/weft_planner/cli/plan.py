"""``weft plan -f FILE``: show a service's plan before it is applied, with predictions, alternatives and reasons."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from weft_core.plan import canonical_json

Json = Mapping[str, object]


class BadInputError(ValueError):
    """Report files that no plan can be made from: one line for each fault, with the file's name."""

    def __init__(self, path: str, *faults: str) -> None:
        shown = "stdin" if path == "-" else path
        super().__init__("\n".join(f"{shown}: {fault}" for fault in faults))


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
    """Print the plan; 0 with a plan, 1 when none is possible, 2 for a manifest that the API server would refuse."""
    from weft_planner.manifest import choose_service, name_of, request_from_service
    from weft_planner.solve import answer
    from weft_planner.tables import render
    from weft_planner.workload import RequestError, request_of

    try:
        documents = _documents(args.file)
        try:
            service = choose_service(documents, args.name)
            _check(args.file, service)
            profiles = [document for path in args.profile for document in _profiles(path, service)]
            request = request_from_service(service, [*documents, *profiles])
            if args.gpus is not None or args.objective is not None:
                body = request.model_dump(by_alias=True)
                body["capacity"]["gpus"] = request.capacity.gpus if args.gpus is None else args.gpus
                body["objective"] = args.objective or request.objective
                request = request_of(body)
        except RequestError as error:
            raise BadInputError(args.file, str(error)) from error
    except BadInputError as error:
        print(error, file=sys.stderr)
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


def _documents(path: str) -> Sequence[Json]:
    """Return the objects of a file, or of stdin for ``-``."""
    from weft_planner.manifest import read_documents
    from weft_planner.workload import RequestError

    try:
        return read_documents(sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInputError(path, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise BadInputError(path, f"not UTF-8 text: {error.reason} at byte {error.start}") from error
    except RequestError as error:
        raise BadInputError(path, str(error)) from error


def _check(path: str, document: Json) -> None:
    """Refuse what the API server would refuse; say so where no installed part can tell."""
    from weft_planner.checks import manifest_faults

    kind = str(document.get("kind"))
    faults = manifest_faults(kind, document)
    if faults is None:
        print(
            f"weft plan: only the fields of the {kind} that the planner reads were checked; "
            "install weft[operator] to check all of them",
            file=sys.stderr,
        )
    elif faults:
        raise BadInputError(path, *faults)


def _profiles(path: str, service: Json) -> list[Json]:
    """Return the CostProfile of a --profile file that the service refers to; a file without it is refused."""
    from weft_planner.manifest import PROFILE_KIND, name_of, profile_name

    profiles = [document for document in _documents(path) if document.get("kind") == PROFILE_KIND]
    if not profiles:
        raise BadInputError(path, f"holds no {PROFILE_KIND}; give --profile the file of one")
    names = ", ".join(sorted(name_of(profile) for profile in profiles))
    wanted = profile_name(service)
    if wanted is None:
        raise BadInputError(
            path,
            f"--profile has no effect, because the service's profile is analytic; set spec.profile.ref.name to {names} "
            "or leave --profile out",
        )
    used = [profile for profile in profiles if name_of(profile) == wanted]
    if not used:
        raise BadInputError(
            path, f"holds {PROFILE_KIND} {names}, and the service's spec.profile.ref.name is {wanted}; correct one"
        )
    for profile in used:
        _check(path, profile)
    return used
