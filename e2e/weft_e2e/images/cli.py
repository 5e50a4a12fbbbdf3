"""Command line of the images: build, load, push, list, prune, sbom."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import click

from weft_cli.running import run
from weft_e2e.images import buildah
from weft_e2e.images.architectures import ARCHITECTURES, native
from weft_e2e.images.catalogue import IMAGES, published_names
from weft_e2e.images.errors import CannotBuildError, ImagesError
from weft_e2e.images.sbom import bill_of, contents_of, differences, pinned, requirements_of
from weft_e2e.images.shelf import PYTHON_IMAGE_VARIABLE, build, prune, push, refs

Function = TypeVar("Function", bound=Callable[..., object])


def say(line: str) -> None:
    """Write a line of progress; standard output carries results only."""
    click.echo(line, err=True)


def show(images: Mapping[str, str], *, as_json: bool) -> None:
    """Print name and reference of each image."""
    if as_json:
        click.echo(json.dumps(dict(images), indent=2))
        return
    for name, ref in images.items():
        click.echo(f"{name:18} {ref}")


def _shared(function: Function) -> Function:
    """Add the options that all commands have."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print a JSON object of name and reference.")
    python_image = click.option(
        "--python-image",
        metavar="REF",
        help=f"Build on this Python image instead of one made from Debian packages (also ${PYTHON_IMAGE_VARIABLE}).",
    )
    return as_json(python_image(function))


_architectures = click.option(
    "--arch",
    "architectures",
    multiple=True,
    type=click.Choice(list(ARCHITECTURES)),
    help="Architecture to build for; may be repeated (default: this machine's).",
)


_names = click.argument("names", nargs=-1, metavar="[IMAGE]...")


_compiled = click.option(
    "--compiled", is_flag=True, help="With the router's path compiled, as in what `push` pushes: it takes minutes."
)


@click.group()
def images() -> None:
    """Build, load and push Weft's container images."""


@images.command("build", epilog=f"Images (default: all): {', '.join(IMAGES)}")
@_names
@_shared
@_compiled
@click.option("--published", is_flag=True, help="Only those that `push` pushes, compiled.")
@_architectures
def build_command(
    *,
    names: Sequence[str],
    as_json: bool,
    python_image: str | None,
    compiled: bool,
    published: bool,
    architectures: Sequence[str],
) -> None:
    """Build the images whose content changed."""
    chosen = published_names() if published else list(names)
    for arch in architectures or (native(),):
        built = build(chosen, python_image=python_image, compiled=compiled or published, arch=arch, report=say)
        show(built, as_json=as_json)


@images.command("list", epilog=f"Images (default: all): {', '.join(IMAGES)}")
@_names
@_shared
@_compiled
def list_command(*, names: Sequence[str], as_json: bool, python_image: str | None, compiled: bool) -> None:
    """Print the names that the present content gives, and whether they are built."""
    found = refs(list(names), python_image=python_image, compiled=compiled)
    if as_json:
        show(found, as_json=True)
        return
    for name, ref in found.items():
        click.echo(f"{name:18} {ref}  {'built' if buildah.exists(ref) else 'not built'}")


@images.command("load", epilog=f"Images (default: all): {', '.join(IMAGES)}")
@_names
@_shared
@_compiled
@click.option("--cluster", default="local", metavar="NAME", show_default=True, help="Name of the local cluster.")
def load_command(
    *, names: Sequence[str], as_json: bool, python_image: str | None, compiled: bool, cluster: str
) -> None:
    """Build what changed and bring it to the nodes of a local cluster."""
    from weft_e2e.cluster import Cluster  # the cluster's own requirements are not needed to build or push

    built = build(list(names), python_image=python_image, compiled=compiled, report=say)
    Cluster(cluster).load(list(built.values()))
    show(built, as_json=as_json)


@images.command("prune")
@_shared
def prune_command(*, as_json: bool, python_image: str | None) -> None:
    """Remove old builds of these images and all cached build layers."""
    show(dict.fromkeys(prune(python_image=python_image), "removed"), as_json=as_json)


@images.command("push")
@_shared
@click.option("--registry", required=True, metavar="PREFIX", help="For example registry.example.com/team.")
@click.option("--tag", help="Tag to push (default: the chart's appVersion).")
@click.option("--plain-http", is_flag=True, help="Allow a registry without TLS.")
@click.option("--silicon", is_flag=True, help="The operator with NVIDIA's tables, too, as weft-operator:TAG-silicon.")
@_architectures
def push_command(
    *,
    as_json: bool,
    python_image: str | None,
    registry: str,
    tag: str | None,
    plain_http: bool,
    silicon: bool,
    architectures: Sequence[str],
) -> None:
    """Build what changed and push operator, router and mock engine to your registry."""
    insecure = ["--tls-verify=false"] if plain_http else []
    pushed = push(
        registry,
        tag=tag,
        options=insecure,
        python_image=python_image,
        architectures=architectures,
        silicon=silicon,
        report=say,
    )
    show(pushed, as_json=as_json)


@images.command("sbom", epilog=f"Images (default: all that `push` pushes): {', '.join(published_names())}")
@_names
@_shared
@click.option("--into", type=click.Path(path_type=Path), default=Path("dist/sbom"), show_default=True)
def sbom_command(*, names: Sequence[str], as_json: bool, python_image: str | None, into: Path) -> None:
    """Write what is inside each image as NAME.cdx.json (CycloneDX); refuse one that differs from what is pinned."""
    built = build(list(names) or published_names(), python_image=python_image, compiled=True, report=say)
    written = {}
    into.mkdir(parents=True, exist_ok=True)
    for name, ref in built.items():
        contents = contents_of(ref)
        pins = pinned((path.read_text() for path in requirements_of(IMAGES[name])), contents.environment)
        if wrong := differences(contents, pins):
            raise CannotBuildError(f"{name} is not what its requirements pin: {'; '.join(wrong)}")
        path = into / f"{name}.cdx.json"
        path.write_text(f"{json.dumps(bill_of(name, ref, contents), indent=2)}\n")
        written[name] = str(path)
    show(written, as_json=as_json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    try:
        return run(images, arguments, prog="python -m weft_e2e.images")
    except ImagesError as error:
        say(f"error: {error}")
        return 1
