"""Parse DDL text into clauses. `statements.parse` reads one; nothing here knows the effect of a clause on a table.

To add a statement: write a function that takes the cursor (after the words), and add it to a table at the end of
`statements`, where clauses of ALTER TABLE stand, too. Clauses of partitions are in `partitions`; options of tables,
types and attributes of columns in `definitions`.

A clause that changes no row needs no class: list its first words, with a kind, among similar ones; the rest of it is
skipped and kept as text (`clauses.OtherClause`). That is no fallback: a statement or a clause with unknown first words
is an error. A clause that does change rows gets a class in `clauses`, and the type checker then shows where it must be
applied.

Add the statement and its clauses to `tests/changelog/ddl/cases/`.
"""
