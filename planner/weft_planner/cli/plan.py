"""``weft plan -f FILE``: show a service's plan before it is applied, with predictions, alternatives and reasons."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from weft_core.plan import canonical_json
from weft_planner.cli.errors import BadInputError

Json = Mapping[str, object]


@click.command()
@click.option("-f", "--file", required=True, metavar="FILE", help="The manifest (YAML), - for stdin.")
@click.option("--name", help="Which service, when the file has several.")
@click.option("--profile", "profiles", multiple=True, metavar="FILE", help="A CostProfile that spec.profile.ref names.")
@click.option("--gpus", type=int, help="Plan for this many GPUs instead of spec.capacity.gpus.")
@click.option("--objective", type=click.Choice(["latency", "cost"]), help="Instead of spec.planning.objective.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def plan(
    *, file: str, name: str | None, profiles: Sequence[str], gpus: int | None, objective: str | None, output: str
) -> int:
    """Plan a service's workers from its manifest, and say why.

    Exit status: 0 with a plan, 1 when none is possible, 2 for a manifest that the API server would refuse.
    """
    from weft_planner.manifest import choose_service, name_of, request_from_service
    from weft_planner.solve import answer
    from weft_planner.tables import render
    from weft_planner.workload import RequestError, request_of

    documents = _documents(file)
    try:
        service = choose_service(documents, name)
        _check(file, service)
        given = [document for path in profiles for document in _profiles(path, service)]
        request = request_from_service(service, [*documents, *given])
        if gpus is not None or objective is not None:
            body = request.model_dump(by_alias=True)
            body["capacity"]["gpus"] = request.capacity.gpus if gpus is None else gpus
            body["objective"] = objective or request.objective
            request = request_of(body)
    except RequestError as error:
        raise BadInputError(file, str(error)) from error
    result = answer(request)
    if output == "json":
        print(canonical_json(result))
    elif output == "yaml":
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
