"""The sample: not a boundary of a feed, but tests write sinks with its writer."""

from cdc_lakehouse.sample import sink_writer
from cdc_lakehouse.sample.shop import Shop, follow, state_path, write_history
from cdc_lakehouse.sample.sink_writer import LINE_END, SampleRowChange, SinkWriter, Table
