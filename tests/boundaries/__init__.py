"""What tests know of the product beside its command line, its definitions and `tests/kit`: a module for each boundary.

A renaming in the product touches one line here. A name joins them where a test cannot be written without it.
"""
