"""Amounts in the unit that shows them: a small one is never ``0.0`` of a large one."""

import pytest

from spectune.domain.sizes import in_bytes


@pytest.mark.parametrize(
    ("amount", "decimal", "binary"),
    [
        (0, "0 bytes", "0 bytes"),
        (1, "1 byte", "1 byte"),
        (999, "999 bytes", "999 bytes"),
        (1000, "1.0 kB", "1000 bytes"),
        (47_200, "47.2 kB", "46.1 KiB"),
        (999_960, "1.0 MB", "976.5 KiB"),
        (93_000_000, "93.0 MB", "88.7 MiB"),
        (16_000_000_000, "16.0 GB", "14.9 GiB"),
        (2**41, "2.2 TB", "2.0 TiB"),
        (3e18, "3000000.0 TB", "2728484.1 TiB"),
    ],
)
def test_an_amount_is_said_in_the_unit_that_shows_it(amount: float, decimal: str, binary: str) -> None:
    assert in_bytes(amount) == decimal
    assert in_bytes(amount, binary=True) == binary
