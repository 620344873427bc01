"""Tables of search options and tensors: each is declared here once.

Python reads the tables. `scripts/declare.py` writes from them the fields of `SearchOptions`, what C
and C++ need, and the tables of the documentation.
"""
