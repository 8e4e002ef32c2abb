"""Jinja2 for templates written by strangers: bounded by construction, in time and memory.

A rendering has an allowance (`allowance.ALLOWANCE`), counted and not timed, so it
ends where it ends on every machine:

- Whatever makes text or a collection is charged its size before it is made: operators,
  filters, methods, `range`, what a block prints. So is whatever looks at all of a value.
- Each run of a body (of a loop, of a macro) is charged for the nodes in it, so loops and
  recursion end.
- Integers have 64 bits, keys 1,000 characters, values a nesting of 64.

What Jinja2 offers and no such charge covers does not compile: inheritance, inclusion, recursive
loops, unpacked arguments. Of attributes a template reaches the items of dictionaries, the
methods in `library.METHODS`, and what namespaces and `loop` hold; nothing else.

The source has at most `syntax.MAX_SOURCE` characters, its tree `syntax.MAX_NODES` nodes on
`syntax.MAX_DEPTH` levels.
"""

from headway.text.bounded_template.environment import BoundedEnvironment

__all__ = ["BoundedEnvironment"]
