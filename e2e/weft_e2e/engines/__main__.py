"""``python -m weft_e2e.engines [image | fits | plugin VERSION…]``: set up what real engines run from; say where.

With ``image`` the image for their pods instead, with ``fits`` nothing: status 0 where they are there or could be made.
With ``plugin`` Weft's plug-in is tried in each of these versions of vLLM.
"""

import sys

from weft_e2e.engines.environment import EngineSetupError, check, ensure
from weft_e2e.engines.host_image import host_image
from weft_e2e.engines.plugin_versions import try_plugin
from weft_e2e.images.errors import ImagesError


def main(words: list[str]) -> int:
    """Return 0 when everything is there."""
    try:
        if words == ["image"]:
            print(host_image(lambda line: print(line, file=sys.stderr)))  # noqa: T201 - the command's own words
            return 0
        if words == ["fits"]:
            check()
            return 0
        if words[:1] == ["plugin"]:
            return try_plugin(words[1:])
        env = ensure(lambda line: print(line, flush=True))  # noqa: T201
    except (EngineSetupError, ImagesError, OSError) as error:
        print(f"real engines: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"engines: {env.root}")  # noqa: T201
    return 0


sys.exit(main(sys.argv[1:]))
