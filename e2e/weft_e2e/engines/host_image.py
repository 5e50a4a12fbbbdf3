"""Build the image that engine pods run in; engine and model come from a volume, so it is small and rarely changes."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from weft_e2e.images import buildah
from weft_e2e.images.base import base_ref, ensure_base, images_cache
from weft_e2e.images.content import digest
from weft_e2e.images.shelf import one_at_a_time

RECIPE = Path(__file__).with_name("host.Dockerfile")
NAME = "localhost/weft-engine-host"


def host_image(report: Callable[[str], None] = lambda _: None) -> str:
    """Return the name of the image, built unless the machine has it.

    Raises:
        ImagesError: it cannot be built here.
    """
    args = {"PYTHON_IMAGE": base_ref()}
    ref = f"{NAME}:{digest({}, dockerfile=RECIPE.read_text(), args=args)}"
    with one_at_a_time():
        if not buildah.exists(ref):
            ensure_base(report)
            report(f"building {ref}")
            with tempfile.TemporaryDirectory(dir=images_cache(), prefix="context-") as folder:
                context = Path(folder)
                shutil.copyfile(RECIPE, context / "Dockerfile")
                log = images_cache() / "logs/weft-engine-host.log"
                buildah.build(ref, context=context, dockerfile="Dockerfile", args=args, log=log)
    return ref
