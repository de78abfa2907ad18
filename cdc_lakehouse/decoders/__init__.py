"""Decode segments into events: frames with the columns of `event_schema`. Values stay the source's text.

`files` decodes files of a storage sink, `messages` decodes messages of topics and entries of a Canal server;
`topic_reader` reads the latter in Spark's tasks.
"""
