"""Command line of the images: build, load, push, list, prune."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence

from weft_e2e.images import buildah
from weft_e2e.images.catalogue import IMAGES, published_names
from weft_e2e.images.errors import ImagesError
from weft_e2e.images.shelf import PYTHON_IMAGE_VARIABLE, build, prune, push, refs


def say(line: str) -> None:
    """Write a line of progress; standard output carries results only."""
    print(line, file=sys.stderr, flush=True)


def show(images: Mapping[str, str], *, as_json: bool) -> None:
    """Print name and reference of each image."""
    if as_json:
        print(json.dumps(dict(images), indent=2))
        return
    for name, ref in images.items():
        print(f"{name:18} {ref}")


def run_build(options: argparse.Namespace) -> None:
    """Build what changed."""
    names = published_names() if options.published else options.names
    show(build(names, python_image=options.python_image, report=say), as_json=options.json)


def run_list(options: argparse.Namespace) -> None:
    """Print the references that the present content has, and whether they are built."""
    found = refs(options.names, python_image=options.python_image)
    if options.json:
        show(found, as_json=True)
        return
    for name, ref in found.items():
        print(f"{name:18} {ref}  {'built' if buildah.exists(ref) else 'not built'}")


def run_load(options: argparse.Namespace) -> None:
    """Build what changed and bring it to the nodes of the local cluster."""
    from weft_e2e.cluster import Cluster  # the cluster's own requirements are not needed to build or push

    built = build(options.names, python_image=options.python_image, report=say)
    Cluster(options.cluster).load(list(built.values()))
    show(built, as_json=options.json)


def run_push(options: argparse.Namespace) -> None:
    """Push the images that users run to a registry."""
    insecure = ["--tls-verify=false"] if options.plain_http else []
    pushed = push(options.registry, tag=options.tag, options=insecure, python_image=options.python_image, report=say)
    show(pushed, as_json=options.json)


def run_prune(options: argparse.Namespace) -> None:
    """Free the disk of what no build needs."""
    show(dict.fromkeys(prune(python_image=options.python_image), "removed"), as_json=options.json)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs."""
    top = argparse.ArgumentParser(prog="python -m weft_e2e.images", description=__doc__)
    verbs = top.add_subparsers(dest="verb", required=True)

    def verb(
        name: str, run: Callable[[argparse.Namespace], None], text: str, *, choose: bool
    ) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, description=text)
        added.add_argument("--json", action="store_true", help="print a JSON object of name and reference")
        added.add_argument(
            "--python-image",
            metavar="REF",
            help=f"build on this Python image instead of one made from Debian packages (also ${PYTHON_IMAGE_VARIABLE})",
        )
        if choose:
            added.add_argument(
                "names", nargs="*", metavar="IMAGE", help=f"which images (default: all): {', '.join(IMAGES)}"
            )
        added.set_defaults(run=run)
        return added

    make = verb("build", run_build, "Build the images whose content changed.", choose=True)
    make.add_argument("--published", action="store_true", help="only those that `push` pushes")
    verb("list", run_list, "Print the names that the present content gives, and whether they are built.", choose=True)
    load = verb("load", run_load, "Build what changed and bring it to the nodes of a local cluster.", choose=True)
    load.add_argument("--cluster", default="local", metavar="NAME", help="name of the local cluster (default: local)")
    verb("prune", run_prune, "Remove old builds of these images and all cached build layers.", choose=False)
    ship = verb(
        "push", run_push, "Build what changed and push operator, router and mock engine to your registry.", choose=False
    )
    ship.add_argument("--registry", required=True, metavar="PREFIX", help="for example registry.example.com/team")
    ship.add_argument("--tag", help="tag to push (default: the chart's appVersion)")
    ship.add_argument("--plain-http", action="store_true", help="allow a registry without TLS")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; return the exit status."""
    options = parser().parse_args(arguments)
    try:
        options.run(options)
    except ImagesError as error:
        say(f"error: {error}")
        return 1
    return 0
