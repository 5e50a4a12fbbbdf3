import pytest

from weft_core.quantities import amount, bytes_of, size_text


@pytest.mark.parametrize(
    ("text", "number"),
    [("1.5Gi", 1.5 * 2**30), ("1500m", 1.5), ("2e3", 2000), (".5", 0.5), (7, 7), ("2Ti", 2**41), ("1k", 1000)],
)
def test_quantities_are_read_as_kubernetes_reads_them(text: object, number: float) -> None:
    assert amount(text) == number


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1GiB", True, None, 1.5, "1e"])
def test_what_is_no_quantity_is_none(text: object) -> None:
    assert amount(text) is None
    assert bytes_of(text) == 0


@pytest.mark.parametrize("text", ["200Gi", "2Ti", "5Mi", "1Ki", "1000"])
def test_sizes_are_written_in_the_largest_unit(text: str) -> None:
    assert size_text(bytes_of(text)) == text
