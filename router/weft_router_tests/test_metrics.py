"""The reference page lists exactly the metrics that the code has."""

from pathlib import Path

from weft_router.signals.metrics import Metrics, reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def test_the_reference_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), "run: python -m weft_router.signals.metrics > docs/reference/metrics.md"


def test_every_metric_is_served_under_the_routers_prefix() -> None:
    names = [line.split()[2] for line in Metrics().page().decode().splitlines() if line.startswith("# TYPE")]
    assert len(names) > 20
    assert all(name.startswith("weft_router_") for name in names)
    for name in names:
        base = name.removesuffix("_created")
        assert f"`{base}`" in reference() or f"`{base}_total`" in reference()
