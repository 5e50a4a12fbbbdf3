"""Bills of materials: what an image's Python says, what requirements pin, and where the two differ."""

import json
from dataclasses import replace

from weft_e2e.images.catalogue import IMAGES, published_names
from weft_e2e.images.sbom import Contents, bill_of, differences, pinned, read_contents, requirements_of

TEXT = json.dumps(
    {
        "python": "3.11.2",
        "machine": "x86_64",
        "distributions": {"Redis": "8.1.0", "typing_extensions": "4.16.0", "weft": "0.1.0"},
        "libraries": {"libc.so.6": "ab" * 32},
    }
)
PINS = """redis==8.1.0 \\
    --hash=sha256:00
typing-extensions==4.16.0 ; python_version < '3.13' \\
    --hash=sha256:11 \\
    --hash=sha256:22
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:33
"""


def contents() -> Contents:
    return read_contents(TEXT)


def test_an_image_is_held_to_what_is_pinned_for_it() -> None:
    held = contents()
    pins = pinned([PINS], held.environment)
    assert pins == {"redis": "8.1.0", "typing-extensions": "4.16.0"}
    assert differences(held, pins) == []
    for distributions, said in (
        ({**held.distributions, "redis": "8.0.0"}, "redis: the image has 8.0.0, pinned is 8.1.0"),
        ({**held.distributions, "pip": "26.0"}, "pip: the image has 26.0, pinned is none"),
        ({"typing-extensions": "4.16.0", "weft": "0.1.0"}, "redis: the image has none, pinned is 8.1.0"),
        ({"redis": "8.1.0", "typing-extensions": "4.16.0"}, "weft: the image has none"),
    ):
        assert differences(replace(held, distributions=distributions), pins) == [said]


def test_the_same_image_has_the_same_bill() -> None:
    one, again = (json.dumps(bill_of("weft-router", "localhost/weft-router:abc", contents())) for _ in range(2))
    assert one == again
    bill = json.loads(one)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"] == {"type": "container", "name": "weft-router", "version": "abc"}
    assert {part.get("purl") for part in bill["components"]} >= {"pkg:generic/python@3.11.2", "pkg:pypi/redis@8.1.0"}
    other = bill_of("weft-router", "localhost/weft-router:abd", contents())
    assert other["serialNumber"] != bill["serialNumber"]


def test_every_published_image_has_requirements_that_are_found() -> None:
    names = {name: [path.name for path in requirements_of(IMAGES[name])] for name in published_names()}
    assert names == {
        "weft-operator": ["operator.txt"],
        "weft-router": ["router.txt"],
        "weft-mock-engine": ["mock.txt"],
    }
    for name in published_names():
        assert len(pinned([path.read_text() for path in requirements_of(IMAGES[name])], contents().environment)) > 5
