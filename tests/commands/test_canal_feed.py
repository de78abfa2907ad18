"""`status` and `plan` of a feed of a Canal server: they disturb no run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cdc_lakehouse.sources.canal.wire import packets_pb2 as wire
from tests.commands import call
from tests.pipeline import lake_in
from tests.sources.canal.binlogs import binlog_of
from tests.sources.canal.hand_made import HandMadeCanal
from tests.sources.canal.servers import HANDSHAKE, Handler, conversation, refusal, serving

LOG = binlog_of([{"kind": "mysql", "rows": 40, "seconds": 1, "rotated": False}]).entries


def test_status_asks_nothing_of_the_destination(tmp_path: Path) -> None:
    server = HandMadeCanal(list(LOG))
    source: dict[str, Any] = {"type": "canal", "destination": "example"}
    with serving(server) as address:
        lake = lake_in(tmp_path, source={**source, "addresses": [address]}, start_date="2020-01-01")
        config = lake.sink.parent / "lakehouse.yaml"
        assert "reachable; 0 entries are landed\n" in call("status", config=config).output
        lake.run().source.land()
        server.heard.clear()
        told = call("status", "--json", config=config)
        assert set(server.heard) == {wire.CLIENT_AUTHENTICATION}
        planned = call("plan", config=config)
        assert planned.exit_code == 0 and set(server.heard) == {wire.CLIENT_AUTHENTICATION}
    (feed,) = json.loads(told.stdout)["feeds"]
    assert feed["landed_entries"] == len(LOG) and feed["landed_position"].startswith("bin.000001:")
    gone = call("status", config=config)
    assert gone.exit_code == 3 and f"cannot be used; {len(LOG)} entries are landed, the last one at" in gone.output


def test_a_user_that_is_refused_is_told(tmp_path: Path) -> None:
    handler: Handler = conversation(HANDSHAKE, wire.CLIENT_AUTHENTICATION, refusal("auth failed for user:me"))
    with serving(handler) as address:
        source = {"type": "canal", "addresses": [address], "destination": "example"}
        lake = lake_in(tmp_path, source=source, start_date="2020-01-01")
        told = call("status", config=lake.sink.parent / "lakehouse.yaml")
    assert told.exit_code == 0 and "refuses the user" in told.output
