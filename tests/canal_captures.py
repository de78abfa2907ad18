"""What servers of Canal 1.1.7 sent, byte for byte: one session with each source, as a TCP proxy saw it.

`tests/data/canal.tar.xz` holds for each source: `connN_c2s.bin` and `connN_s2c.bin`, what client and server said
(1 the main session, 2 with a wrong password, 3 for a destination that is not there), `connN_index.json`, in what order;
`flat_messages.jsonl` and `mq_protobuf_len32.bin`, the same entries as Canal's own code writes them to topics;
`expected_tables.json`, what the source then had."""

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from cdc_lakehouse.sources.canal.wire import packets_pb2 as wire

ARCHIVE: Final = Path(__file__).parent / "data" / "canal.tar.xz"
SOURCES: Final = ("mysql8.0.12", "mariadb10.11")


@dataclass(frozen=True)
class Capture:
    files: dict[str, bytes]

    def packets(self, number: int, side: str) -> list[wire.Packet]:
        return [wire.Packet.FromString(body) for body in framed(self.files[f"conn{number}_{side}.bin"])]

    @property
    def batches(self) -> list[wire.Messages]:
        """Batches of the main session that were acknowledged: each entry once."""
        said = self.packets(1, "c2s")
        acked = {wire.ClientAck.FromString(packet.body).batch_id for packet in said if packet.type == wire.CLIENT_ACK}
        sent = [p for p in self.packets(1, "s2c") if p.type == wire.MESSAGES]
        return [batch for p in sent if (batch := wire.Messages.FromString(p.body)).batch_id in acked]

    @property
    def entries(self) -> list[bytes]:
        return [entry for batch in self.batches for entry in batch.messages]

    @property
    def flat_messages(self) -> list[bytes]:
        return self.files["flat_messages.jsonl"].splitlines()

    @property
    def topic_values(self) -> list[bytes]:
        """With flatMessage=false."""
        return list(framed(self.files["mq_protobuf_len32.bin"]))

    @property
    def tables(self) -> dict[str, Any]:
        """By name: `columns` (name, column_type, data_type) and `rows` of values, each as `text` and `hex`."""
        return json.loads(self.files["expected_tables.json"])


@cache
def capture(source: str) -> Capture:
    with tarfile.open(ARCHIVE) as archive:
        parts = {
            member.name.split("/")[-1]: part.read()
            for member in archive
            if member.name.startswith(f"{source}/") and (part := archive.extractfile(member)) is not None
        }
    return Capture(parts)


def framed(content: bytes) -> Iterator[bytes]:
    """Bodies, each after its length in four bytes."""
    while content:
        length = int.from_bytes(content[:4], "big")
        yield content[4 : 4 + length]
        content = content[4 + length :]
