"""What statements make of tables is what a real MySQL makes of them."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from tests import LONG
from tests.changelog.statements import in_odd_case
from tests.servers.ddl_oracle import Oracle, RandomDdl
from tests.servers.mysql import MySqlServer, mysql_server

pytestmark = pytest.mark.server

SEQUENCES = int(os.environ.get("CDC_DDL_SEQUENCES", 5000 if LONG else 40))
"""How many random sequences; more on demand."""
FIRST_SEED = int(os.environ.get("CDC_DDL_SEED", "0"))
LENGTH = 15
SHOWN = 50


@pytest.fixture(scope="module")
def folding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MySqlServer]:
    with mysql_server(tmp_path_factory.mktemp("folding"), folding=True) as server:
        yield server


@pytest.mark.in_turn
@pytest.mark.parametrize("half", range(2))
@pytest.mark.parametrize("has_rows", [False, True])
def test_random_sequences(folding: MySqlServer, half: int, has_rows: bool) -> None:
    """Names are typed in any letter case. With rows, a table is held where the server changes them as the log does not
    say, and nowhere else."""
    oracle = Oracle(folding, has_rows=has_rows, folding=True)
    taken: Counter[bool] = Counter()
    different: list[str] = []
    for seed in range(FIRST_SEED + half, FIRST_SEED + SEQUENCES, 2):
        oracle.begin()
        made = RandomDdl(random.Random(seed), generated=0.15 if has_rows else 0.06)
        try:
            for _ in range(LENGTH):
                taken[oracle.run(in_odd_case(made.next(oracle.current), seed))] += 1
        except AssertionError as error:
            different.append(f"seed {seed}: {error}")
    shown = "\n\n".join(different[:SHOWN])
    assert not different, f"{len(different)} sequences are different:\n{shown}"
    # A generator whose statements are mostly refused tells little; rows refuse more of them.
    assert taken[True] > (0.3 if has_rows else 0.45) * taken.total()
