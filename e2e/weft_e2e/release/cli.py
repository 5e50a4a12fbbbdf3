"""Command line of a release."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import click

from weft_cli.running import run
from weft_e2e.cluster.errors import SetupError
from weft_e2e.cluster.toolchain import tool_path
from weft_e2e.images.catalogue import repository_root
from weft_e2e.release.chart import package_chart, push_chart
from weft_e2e.release.errors import ReleaseError
from weft_e2e.release.versions import check_tag, release_notes


@click.group()
def release() -> None:
    """Check a release's versions, print its notes, package and push its chart."""


@release.command()
@click.argument("tag")
def check(tag: str) -> None:
    """Fail unless every file declares the version of a Git TAG, and the changelog has its notes."""
    click.echo(check_tag(tag, repository_root()))


@release.command()
@click.argument("version")
def notes(version: str) -> None:
    """Print the changelog's section of a VERSION."""
    click.echo(release_notes(version, repository_root()), nl=False)


@release.command()
@click.option("--registry", required=True, metavar="PREFIX", help="For example registry.example.com/team.")
@click.option("--tag", default="", help="Tag of the images (default: the chart's appVersion).")
@click.option("--pin", "pins", multiple=True, metavar="IMAGE=DIGEST", help="Pin a third-party image to a digest.")
@click.option("--into", type=click.Path(path_type=Path), default=Path("dist"), show_default=True)
@click.option("--push/--no-push", default=False, help="Push the package to PREFIX/charts/weft.")
@click.option("--plain-http", is_flag=True, help="Allow a registry without TLS.")
def chart(*, registry: str, tag: str, pins: Sequence[str], into: Path, push: bool, plain_http: bool) -> None:
    """Package the chart so that it pulls images from a registry, and push it there."""
    helm = _helm()
    by_name = {image: digest for image, _, digest in (pin.partition("=") for pin in pins)}
    archive = package_chart(registry, root=repository_root(), into=into, helm=helm, tag=tag, digests=by_name)
    click.echo(f"{archive}")
    if push:
        reference = push_chart(archive, registry, helm=helm, options=["--plain-http"] if plain_http else [])
        (into / "chart-reference").write_text(f"{reference}\n")  # for what signs or attests it
        click.echo(reference)


def _helm() -> str:
    """Return the user's Helm, or the one built for the local cluster."""
    try:
        return shutil.which("helm") or str(tool_path("helm"))
    except SetupError:
        raise ReleaseError("helm is missing: install Helm 3.14 or newer and put it on PATH") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    try:
        return run(release, arguments, prog="python -m weft_e2e.release")
    except ReleaseError as error:
        click.echo(f"error: {error}", err=True)
        return 1
