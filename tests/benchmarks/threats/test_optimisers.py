from __future__ import annotations

import pytest

from benchmarks.threats import optimisers
from benchmarks.threats.attacks import SURVIVES


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_with_adam_a_trigger_fades_where_nobody_has_ink_and_else_survives_in_part(
    name: str,
) -> None:
    found = optimisers.measured(optimisers.lab(name, 0))
    plain, honest, _, _, edge, edge_faded, inside, inside_faded, _, robust = found
    assert honest > plain - 0.02
    assert edge > 0.5
    assert edge_faded < 0.05
    assert inside > 0.5
    # Known and documented: Adam's steps are as long where inputs are rare.
    assert SURVIVES < inside_faded < 0.7 * inside
    assert robust < SURVIVES
