"""Lists the project's images and where their files come from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weft_e2e.cluster.errors import SetupError
from weft_e2e.cluster.toolchain import tool_path
from weft_e2e.images.errors import CannotBuildError


@dataclass(frozen=True)
class Image:
    """One image: its Dockerfile lies in images/<folder>/, its repository is called `name`."""

    name: str
    folder: str
    # Users run these from their own registry; the others only stand in for public images on the local cluster.
    published: bool = False
    # Programs built by `make setup` that go into the build context under their names.
    programs: tuple[str, ...] = ()
    # What its build takes: seconds on two idle cores like those it was measured on.
    work_s: float = 2.0
    # The most megabytes that it may have, uncompressed: nodes pull it before the first start.
    most_mb: float = float("inf")

    @property
    def dockerfile(self) -> str:
        """Path of the Dockerfile from the repository root."""
        return f"images/{self.folder}/Dockerfile"


IMAGES: Mapping[str, Image] = {
    image.name: image
    for image in (
        Image("weft-operator", "operator", published=True, work_s=30.0, most_mb=500.0),
        Image("weft-router", "router", published=True, work_s=10.0, most_mb=200.0),
        Image("weft-mock-engine", "mock-engine", published=True, work_s=10.0, most_mb=100.0),
        Image("weft-redis", "redis", work_s=4.0),
        Image("weft-prometheus", "prometheus", programs=("prometheus",)),
    )
}


def repository_root() -> Path:
    """Return the checkout that this package runs from; images cannot be built from an installed wheel."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "images").is_dir():
        raise CannotBuildError(
            "images are built from a checkout of the repository: run this from its virtual environment"
        )
    return root


def programs_of(image: Image) -> dict[str, Path]:
    """Return context name -> file for the built programs that go into an image."""
    try:
        return {name: tool_path(name) for name in image.programs}
    except SetupError as missing:
        raise CannotBuildError(f"{image.name}: {missing}") from missing


def published_names() -> list[str]:
    """Return the names of the images that users run from their own registry."""
    return [image.name for image in IMAGES.values() if image.published]


def chosen(names: list[str] | None) -> list[Image]:
    """Return the named images, or all of them; refuse an unknown name."""
    if not names:
        return list(IMAGES.values())
    for name in names:
        if name not in IMAGES:
            raise CannotBuildError(f"there is no image {name!r}; choose from {', '.join(IMAGES)}")
    return [IMAGES[name] for name in names]
