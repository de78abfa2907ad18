"""Sources: a store, a broker or a server becomes listings, ranges and batches."""

from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.decoders.format import Options
from cdc_lakehouse.decoders.formats.ticdc_canal_json import FORMAT as TICDC_CANAL_JSON
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.sources.canal.client import (
    Batch,
    CanalClient,
    CanalProtocolError,
    CanalRedeliveryError,
    CanalRefusedError,
)
from cdc_lakehouse.sources.canal.positions import BinlogPosition, BinlogSearch, EntryStream, contradiction, placed
from cdc_lakehouse.sources.canal.wire import entries_pb2, packets_pb2
from cdc_lakehouse.sources.database import (
    KeyRange,
    SourceDatabase,
    TableDefinition,
    position_of,
    ranges_of,
    wait_for_commits,
)
from cdc_lakehouse.sources.dump.contents import DumpPosition, list_objects
from cdc_lakehouse.sources.kafka import (
    Bounds,
    Brokers,
    RangeReader,
    Topic,
    choose_ranges,
    find_pending,
    read_claim_check,
    read_topics,
    split_ranges,
)
from cdc_lakehouse.sources.object_store import (
    LocalStore,
    Location,
    ObjectStore,
    StoredObject,
    UnreadableDirectory,
    open_store,
    shared_store,
)
from cdc_lakehouse.sources.record_log import LandedOffsets, LandedTopic, LogPartition, OffsetRange
from cdc_lakehouse.sources.sink.paths import (
    SCHEMA_FILE_LIMIT,
    Listing,
    list_sink,
    read_checkpoint,
    read_index,
    read_schema_file,
)
