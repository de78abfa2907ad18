from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EntryType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENTRY_TYPE_UNSPECIFIED: _ClassVar[EntryType]
    TRANSACTION_BEGIN: _ClassVar[EntryType]
    ROW_DATA: _ClassVar[EntryType]
    TRANSACTION_END: _ClassVar[EntryType]
    HEARTBEAT: _ClassVar[EntryType]
    GTID_LOG: _ClassVar[EntryType]

class EventType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_TYPE_UNSPECIFIED: _ClassVar[EventType]
    INSERT: _ClassVar[EventType]
    UPDATE: _ClassVar[EventType]
    DELETE: _ClassVar[EventType]
    CREATE: _ClassVar[EventType]
    ALTER: _ClassVar[EventType]
    ERASE: _ClassVar[EventType]
    QUERY: _ClassVar[EventType]
    TRUNCATE: _ClassVar[EventType]
    RENAME: _ClassVar[EventType]
    CREATE_INDEX: _ClassVar[EventType]
    DROP_INDEX: _ClassVar[EventType]
    GTID: _ClassVar[EventType]
    XA_COMMIT: _ClassVar[EventType]
    XA_ROLLBACK: _ClassVar[EventType]
    MASTER_HEARTBEAT: _ClassVar[EventType]
ENTRY_TYPE_UNSPECIFIED: EntryType
TRANSACTION_BEGIN: EntryType
ROW_DATA: EntryType
TRANSACTION_END: EntryType
HEARTBEAT: EntryType
GTID_LOG: EntryType
EVENT_TYPE_UNSPECIFIED: EventType
INSERT: EventType
UPDATE: EventType
DELETE: EventType
CREATE: EventType
ALTER: EventType
ERASE: EventType
QUERY: EventType
TRUNCATE: EventType
RENAME: EventType
CREATE_INDEX: EventType
DROP_INDEX: EventType
GTID: EventType
XA_COMMIT: EventType
XA_ROLLBACK: EventType
MASTER_HEARTBEAT: EventType

class Pair(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("version", "logfile_name", "logfile_offset", "server_id", "server_encoding", "execute_time", "source_type", "schema_name", "table_name", "event_length", "event_type", "props", "gtid")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOGFILE_NAME_FIELD_NUMBER: _ClassVar[int]
    LOGFILE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    SERVER_ENCODING_FIELD_NUMBER: _ClassVar[int]
    EXECUTE_TIME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_NAME_FIELD_NUMBER: _ClassVar[int]
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    EVENT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROPS_FIELD_NUMBER: _ClassVar[int]
    GTID_FIELD_NUMBER: _ClassVar[int]
    version: int
    logfile_name: str
    logfile_offset: int
    server_id: int
    server_encoding: str
    execute_time: int
    source_type: int
    schema_name: str
    table_name: str
    event_length: int
    event_type: EventType
    props: _containers.RepeatedCompositeFieldContainer[Pair]
    gtid: str
    def __init__(self, version: _Optional[int] = ..., logfile_name: _Optional[str] = ..., logfile_offset: _Optional[int] = ..., server_id: _Optional[int] = ..., server_encoding: _Optional[str] = ..., execute_time: _Optional[int] = ..., source_type: _Optional[int] = ..., schema_name: _Optional[str] = ..., table_name: _Optional[str] = ..., event_length: _Optional[int] = ..., event_type: _Optional[_Union[EventType, str]] = ..., props: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., gtid: _Optional[str] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("header", "entry_type", "store_value")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_TYPE_FIELD_NUMBER: _ClassVar[int]
    STORE_VALUE_FIELD_NUMBER: _ClassVar[int]
    header: Header
    entry_type: EntryType
    store_value: bytes
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., entry_type: _Optional[_Union[EntryType, str]] = ..., store_value: _Optional[bytes] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("index", "sql_type", "name", "is_key", "updated", "is_null", "props", "value", "length", "mysql_type")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SQL_TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    IS_KEY_FIELD_NUMBER: _ClassVar[int]
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    IS_NULL_FIELD_NUMBER: _ClassVar[int]
    PROPS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    MYSQL_TYPE_FIELD_NUMBER: _ClassVar[int]
    index: int
    sql_type: int
    name: str
    is_key: bool
    updated: bool
    is_null: bool
    props: _containers.RepeatedCompositeFieldContainer[Pair]
    value: str
    length: int
    mysql_type: str
    def __init__(self, index: _Optional[int] = ..., sql_type: _Optional[int] = ..., name: _Optional[str] = ..., is_key: _Optional[bool] = ..., updated: _Optional[bool] = ..., is_null: _Optional[bool] = ..., props: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., value: _Optional[str] = ..., length: _Optional[int] = ..., mysql_type: _Optional[str] = ...) -> None: ...

class RowData(_message.Message):
    __slots__ = ("before_columns", "after_columns", "props")
    BEFORE_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    AFTER_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    PROPS_FIELD_NUMBER: _ClassVar[int]
    before_columns: _containers.RepeatedCompositeFieldContainer[Column]
    after_columns: _containers.RepeatedCompositeFieldContainer[Column]
    props: _containers.RepeatedCompositeFieldContainer[Pair]
    def __init__(self, before_columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., after_columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., props: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ...) -> None: ...

class RowChange(_message.Message):
    __slots__ = ("table_id", "event_type", "is_ddl", "sql", "row_datas", "props", "ddl_schema_name")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    IS_DDL_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    ROW_DATAS_FIELD_NUMBER: _ClassVar[int]
    PROPS_FIELD_NUMBER: _ClassVar[int]
    DDL_SCHEMA_NAME_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    event_type: EventType
    is_ddl: bool
    sql: str
    row_datas: _containers.RepeatedCompositeFieldContainer[RowData]
    props: _containers.RepeatedCompositeFieldContainer[Pair]
    ddl_schema_name: str
    def __init__(self, table_id: _Optional[int] = ..., event_type: _Optional[_Union[EventType, str]] = ..., is_ddl: _Optional[bool] = ..., sql: _Optional[str] = ..., row_datas: _Optional[_Iterable[_Union[RowData, _Mapping]]] = ..., props: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., ddl_schema_name: _Optional[str] = ...) -> None: ...

class TransactionBegin(_message.Message):
    __slots__ = ("execute_time", "transaction_id", "props", "thread_id")
    EXECUTE_TIME_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    PROPS_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    execute_time: int
    transaction_id: str
    props: _containers.RepeatedCompositeFieldContainer[Pair]
    thread_id: int
    def __init__(self, execute_time: _Optional[int] = ..., transaction_id: _Optional[str] = ..., props: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., thread_id: _Optional[int] = ...) -> None: ...

class TransactionEnd(_message.Message):
    __slots__ = ("execute_time", "transaction_id", "props")
    EXECUTE_TIME_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    PROPS_FIELD_NUMBER: _ClassVar[int]
    execute_time: int
    transaction_id: str
    props: _containers.RepeatedCompositeFieldContainer[Pair]
    def __init__(self, execute_time: _Optional[int] = ..., transaction_id: _Optional[str] = ..., props: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ...) -> None: ...
