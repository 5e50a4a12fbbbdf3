"""``python -m weft_e2e.engines [image]``: set up what real engines run from, or the image for their pods; say where."""

import sys

from weft_e2e.engines.environment import EngineSetupError, ensure
from weft_e2e.engines.host_image import host_image
from weft_e2e.images.errors import ImagesError


def main(words: list[str]) -> int:
    """Return 0 when everything is there."""
    try:
        if words == ["image"]:
            print(host_image(lambda line: print(line, file=sys.stderr)))  # noqa: T201 - the command's own words
            return 0
        env = ensure(lambda line: print(line, flush=True))  # noqa: T201
    except (EngineSetupError, ImagesError, OSError) as error:
        print(f"engine-env: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"engines: {env.root}")  # noqa: T201
    return 0


sys.exit(main(sys.argv[1:]))
