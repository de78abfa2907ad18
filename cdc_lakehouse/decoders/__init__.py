"""Segments become events: a DataFrame with the columns of `event_schema`. Values stay the source's text.

`files` decodes files of a storage sink, `messages` messages of topics and entries of a Canal server; `topic_reader`
reads the latter in Spark's tasks."""
