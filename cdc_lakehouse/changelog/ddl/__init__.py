"""Parse DDL text into clauses; nothing here but `apply` knows the effect of a clause on a table.

`statements.parse` reads a statement, and its docstring says how to add one. A clause that changes no row needs no class
(`clauses.OtherClause`). That is no fallback: a statement or a clause with unknown first words is an error. A clause
that does change rows gets a class in `clauses`, and the type checker then shows where it must be applied. Add both to
`tests/changelog/cases/ddl/`.
"""
