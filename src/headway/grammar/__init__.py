"""Grammars: what outputs are held to, compiled into masks over a vocabulary.

lark.py       what was asked, as a grammar in Lark
schema.py     JSON schemas: what is refused, and how the JSON is spaced
compiler.py   Lark into masks, by llguidance
pool.py       compiling in threads of its own, under a deadline, each grammar once
"""
