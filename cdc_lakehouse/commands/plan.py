"""`cdc-lakehouse plan`: show what pending DDL will do, without changing anything. No JVM is started."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from cdc_lakehouse.changelog.history import History, Incarnation
from cdc_lakehouse.changelog.positions import BEGINNING, commit_time
from cdc_lakehouse.changelog.schema import TableName, TableVersion, column_diff
from cdc_lakehouse.commands.common import DONE, Asked, of_feeds
from cdc_lakehouse.config.reporting import plural
from cdc_lakehouse.errors import UnreadableTableError
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.current.typed_rows import lake_columns, lake_name, plan_evolution
from cdc_lakehouse.lake.files import FIRST_WITH_VECTORS
from cdc_lakehouse.lake.iceberg_java import SchemaOperation
from cdc_lakehouse.lake.names import quote
from cdc_lakehouse.pipeline.dump import DumpSource, PendingLoad
from cdc_lakehouse.pipeline.feed_tables import feed_table, format_refusal, is_purged
from cdc_lakehouse.pipeline.holds import ddl_advice, unapproved, waiting_reason
from cdc_lakehouse.pipeline.run import FeedRun


def plan_ddl(run: FeedRun) -> dict[str, Any]:
    """Return what is pending, as the command prints it in JSON. `statements` are those that are not recorded yet. One
    that `waits` is above the checkpoint, `columns` is its difference in columns, as lines, and `hold` says why its
    table is held. `tables` are the current-state tables that they change, with the number of rows that are `rewritten`.

    Reads the source, the initial dump and the lake, and changes none of them. Raises the errors of reading the
    checkpoint and listing the sink."""
    checkpoint, history = _foreseen(run)
    lives, takes = history.incarnations(), run.feed.tables.takes
    pending = [version for version in history.versions if version.origin not in run.history.changes]
    pending = [v for v in pending if not v.incarnation or takes(v.name.database, v.name.table)]
    statements: list[dict[str, Any]] = []
    for version in pending:
        life = lives.get(version.incarnation)
        before = None if life is None else life.before(version)
        statements.append({
            "commit_ts": version.commit_ts, "database": version.name.database, "table": version.name.table,
            "kind": version.kind, "effect": version.effect, "statement": version.query,
            "waits": version.commit_ts > checkpoint, "columns": [] if before is None else column_diff(before, version),
            "note": version.note, "hold": version.hold,
        })  # fmt: skip
    concerned = {version.incarnation for version in pending if version.incarnation and version.commit_ts <= checkpoint}
    concerned |= set(run.last_cut.held_incarnations)
    tables = CurrentTables(run.lake, run.feed)
    if run.settings != run.last_cut.settings:
        for id, life in lives.items():
            try:
                state = tables.find(life)
            except UnreadableTableError:
                concerned.add(id)
                continue
            wanted = run.feed.format_version_of(life.last.name.database, life.last.name.table)
            if state is not None and life.dropped_ts is None and state.format_version != wanted:
                concerned.add(id)
    upto = [life.upto(checkpoint) for id, life in lives.items() if id in concerned]
    plans = [_table(run, tables, life) for life in upto if life is not None]
    initial = None if run.feed.initial is None else DumpSource(run, run.feed.initial).pending()
    return {"feed": run.feed.name, "checkpoint_ts": checkpoint, "statements": statements, "tables": plans,
            "initial": initial}  # fmt: skip


def source_tables(run: FeedRun) -> list[TableVersion]:
    """Return the newest version of each table that the source's schema, what has landed or the dump shows, whether the
    feed takes it or not, sorted by name. Changes nothing. Raises the errors of reading the source and the dump."""
    _, history = _foreseen(run)
    if (initial := run.feed.initial) is not None and initial.uri is not None:
        known = {life.last.name for life in history.incarnations().values()}
        dumped = DumpSource(run, initial).definitions()
        history.apply(each for each in dumped if TableName(each.database, each.table) not in known)
    live = [life.last for life in history.incarnations().values() if life.dropped_ts is None]
    return sorted(live, key=lambda version: (version.name.database, version.name.table))


def _foreseen(run: FeedRun) -> tuple[int, History]:
    """Return the checkpoint that the next run would apply, and the history including all pending changes; for topics,
    those that have landed."""
    run.source.peek()
    waiting, _ = run.source.schema_changes()
    history = History()
    history.apply({**run.history.changes, **{change.origin: change for change in waiting}}.values())
    return run.source.checkpoint_ts(), history


def _table(run: FeedRun, tables: CurrentTables, life: Incarnation) -> dict[str, Any]:
    wanted = tables.identifier(life.last.name)
    planned = {"table": str(life.last.name), "iceberg_table": str(wanted), "rows": 0, "rewritten": 0,
               "statements": [], "hold": None}  # fmt: skip
    try:
        state = tables.find(life)
    except UnreadableTableError as error:
        return {**planned, "hold": str(error)}
    new = [version for version in life.versions if version.commit_ts > run.last_cut.checkpoint_ts]
    way_out = ddl_advice(life.last.name)
    hold = next((f"{version.hold}. {way_out}" for version in life.versions if version.hold is not None), None)
    waiting = unapproved(run.feed, run.decisions, life, tables.find)
    hold = hold or (waiting_reason(life, waiting) if waiting else dict(run.last_cut.held).get(life.id))
    table = feed_table(run.feed, life)
    lake = lake_columns(life.last.carried, table.values)
    if state is None:
        columns = ", ".join(f"{quote(column.name)} {column.type}" for column in lake)
        made = [f"CREATE TABLE {wanted.sql} ({columns})"] if life.dropped_ts is None else []
        return {**planned, "statements": made, "hold": hold}
    hold = hold or format_refusal(run.feed, life, state)
    version = run.feed.format_version_of(life.last.name.database, life.last.name.table)
    converted = table.converted_since(max(len(life.versions) - len(new) - 1, 0))
    plan = plan_evolution(state.columns, lake, state.order, converted, defaults=version >= FIRST_WITH_VECTORS)
    # As SQL: they are carried out as commits of metadata through Iceberg's own API.
    name, known = state.identifier.sql, {column.id for column in state.columns}
    statements: list[str] = []
    if version > state.format_version:
        statements.append(f"ALTER TABLE {name} SET TBLPROPERTIES ('format-version'='{version}')")
    statements += [f"ALTER TABLE {name} {_words(operation)}" for step in plan.steps for operation in step]
    columns = [column for column in life.last.carried if column.id in plan.rewritten]
    for column in sorted(columns, key=lambda column: column.id not in known):
        quoted = quote(lake_name(column))
        value = f"convert({quoted})" if column.id in known else "DEFAULT"
        statements.append(f"UPDATE {name} SET {quoted} = {value}")
    statements += [f"DELETE FROM {name}" for each in new if each.effect == "empty"]
    if life.dropped_ts is not None:
        statements = [f"DROP TABLE {name}" if is_purged(run.feed, life) else "(kept, marked as dropped)"]
    elif wanted != state.identifier:
        statements.append(f"ALTER TABLE {name} RENAME TO {wanted.sql}")
    rewritten = state.row_count if plan.rewritten and life.dropped_ts is None else 0
    return {**planned, "iceberg_table": str(state.identifier), "rows": state.row_count, "rewritten": rewritten,
            "statements": statements, "hold": hold}  # fmt: skip


def _words(of: SchemaOperation) -> str:
    name = quote(of.name)
    match of.do:
        case "add":
            return f"ADD COLUMN {name} {of.type}" + ("" if of.default is None else f" DEFAULT {of.default!r}")
        case "drop":
            return f"DROP COLUMN {name}"
        case "rename":
            return f"RENAME COLUMN {name} TO {quote(of.new_name)}"
        case "widen":
            return f"ALTER COLUMN {name} TYPE {of.type}"
        case "move":
            return f"ALTER COLUMN {name} {'FIRST' if of.after is None else f'AFTER {quote(of.after)}'}"


@click.command()
@of_feeds("Print the plan as JSON.")
def command(asked: Asked) -> int:
    """Show what is pending: the initial load, and DDL with its effect, the statements that would run, and the rows
    that would be rewritten.

    \b
    Example:
      cdc-lakehouse plan --feed shop
    """
    plans = [plan_ddl(run) for run in asked.runs]
    feeds = [{**plan, "initial": plan["initial"] and asdict(plan["initial"])} for plan in plans]
    asked.answer({"feeds": feeds}, *map(_plan_text, plans))
    return DONE


def _plan_text(plan: dict[str, Any]) -> str:
    checkpoint = plan["checkpoint_ts"]
    upto = f"up to {checkpoint} ({commit_time(checkpoint):%Y-%m-%d %H:%M:%S} UTC)"
    lines = [f"feed {plan['feed']}, {'before its first run' if checkpoint == BEGINNING else upto}"]
    load: PendingLoad | None = plan["initial"]
    if load is not None:
        if load.reading is not None:
            said = f"the database is being read: {load.reading}"
        elif load.files is None:
            said = "the tables of the database are to be read"
        else:
            said = f"{plural(load.files, 'file')} of {plural(load.tables or 0, 'table')}, {load.bytes:,} bytes"
            said += "" if load.waits is None else f"; {load.waits}"
        lines.append(f"  initial load: {said}")
    if not plan["statements"] and not plan["tables"]:
        return "\n".join([*lines, "  no DDL is pending"])
    for pending in plan["statements"]:
        waits = ", above the checkpoint" if pending["waits"] else ""
        table = f"{pending['database']}.{pending['table']}" if pending["table"] else pending["database"]
        when = f"{commit_time(pending['commit_ts']):%Y-%m-%d %H:%M:%S}"
        lines += ["", f"  {table}  {pending['effect']}  {when}{waits}"]
        lines.append(f"    {pending['statement'] or '(columns observed)'}")
        lines += [f"      {line}" for line in pending["columns"]]
        lines += [f"    note: {pending['note']}"] if pending["note"] else []
        lines += [f"    holds the table: {pending['hold']}"] if pending["hold"] else []
    for each in plan["tables"]:
        numbers = f"{plural(each['rows'], 'row')}, {each['rewritten']:,} to rewrite"
        lines += ["", f"  {each['table']} ({each['iceberg_table']}): {numbers}"]
        lines += [f"    {statement}" for statement in each["statements"] or ["nothing changes but rows"]]
        lines += [] if each["hold"] is None else [f"    held: {each['hold']}"]
    return "\n".join(lines)
