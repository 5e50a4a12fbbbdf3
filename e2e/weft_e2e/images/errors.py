"""Errors of building and shipping images.

ImagesError                 a message for the user: what is wrong and what to do about it
├── CannotBuildError             nothing was built: this machine lacks a program, a right or a file
├── RecipeError             a Dockerfile uses a form that content tags cannot follow
└── BuildFailedError             a build, push or load ran and failed; the end of its log is in the message
"""


class ImagesError(RuntimeError):
    """Base of everything this package raises on purpose."""


class CannotBuildError(ImagesError):
    """Nothing was built: this machine lacks a program, a right or a file."""


class RecipeError(ImagesError):
    """A Dockerfile uses a form that content tags cannot follow."""


class BuildFailedError(ImagesError):
    """A build, push or load ran and failed."""
