"""DDL text → clauses. `parser.parse` reads a statement; nothing here knows what a clause does to a table.

To add a statement: a function of the cursor (after the words), and its row in a table at the end of `parser`. For a
clause of ALTER TABLE see `alter`, for one of partitions `partitions`, for a table option `options`, for a type or an
attribute of a column `columns`.

What changes no row needs no class: its first words, with a kind, where others of its sort are listed; the rest of it
is skipped and kept as text (`clauses.NoEffect`). That is no fallback: a statement or a clause whose first words are not
known is an error. What does change rows gets a class in `clauses`, and the type checker then shows where it has to be
carried out.

The statement and its clauses go into `tests/changelog/ddl/cases/`.
"""
