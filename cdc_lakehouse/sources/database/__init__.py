"""The source database itself, read with SQL: for comparing it with the lake. Nothing is ever written there."""
