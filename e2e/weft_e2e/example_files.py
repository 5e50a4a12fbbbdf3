"""Find the example services: in the checkout, or in the installed package, whose wheel carries them."""

from importlib import resources
from pathlib import Path

DEMO = "llama-3.1-70b.yaml"
"""The service of the demo."""


def example_file(name: str = DEMO) -> Path:
    """Return an example's path, relative where it lies below the working directory.

    Raises:
        FileNotFoundError: there is no such example.
    """
    package = Path(str(resources.files("weft_e2e")))
    for folder in (package / "examples", package.parents[1] / "docs/examples"):
        path = folder / name
        if path.is_file():
            return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    raise FileNotFoundError(f"there is no example {name}")
