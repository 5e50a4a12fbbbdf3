"""Builds the project's container images, named by their content, and ships them."""

from weft_e2e.images.errors import BuildFailedError, CannotBuildError, ImagesError, RecipeError
from weft_e2e.images.shelf import build, chart_values, prune, push, refs, task

__all__ = [
    "BuildFailedError",
    "CannotBuildError",
    "ImagesError",
    "RecipeError",
    "build",
    "chart_values",
    "prune",
    "push",
    "refs",
    "task",
]
