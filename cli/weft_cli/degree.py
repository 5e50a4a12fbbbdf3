"""The degree of a worker as an option takes it: a number of GPUs, or how it splits the model otherwise."""

import click

from weft_core.parallelism import Degree, Parallelism, parse_degree


class DegreeType(click.ParamType[Degree]):
    """A degree: 8, tp4pp2, dp16ep."""

    name = "degree"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Degree:
        """Return the degree, or fail with the form."""
        if isinstance(value, int | Parallelism):
            return value
        try:
            return parse_degree(str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


DEGREE = DegreeType()
