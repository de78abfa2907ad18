"""The source database itself, read with SQL, to compare it with the lake and to load it. Nothing is ever written
there."""
