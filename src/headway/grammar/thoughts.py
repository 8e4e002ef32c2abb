"""What a model thinks, which is free, before an answer that is held to something."""

from __future__ import annotations

from collections.abc import Mapping

from headway.core.structured import Thoughts
from headway.grammar.literals import ANYTHING, SPACE, escaped, literal

__all__ = ["after_thoughts", "not_thoughts"]


def after_thoughts(thoughts: Thoughts, answer: str, special: Mapping[str, int]) -> str:
    """The grammar of a think block and then, with any white space between them, of the grammar
    that is called `answer`."""
    opener = "" if thoughts.opened else thoughts.opener
    if thoughts.closer in special:
        block = f"block: {literal(opener, special)} TEXT {literal(thoughts.closer, special)}"
    else:  # lazy: the first closer ends it
        block = f"block[lazy]: /{escaped(opener)}(.|\\n)*{escaped(thoughts.closer)}/"
    start = f"start: {'block' if thoughts.opened else 'block?'} SPACE @{answer}"
    return "\n".join([start, block, f"TEXT: {ANYTHING}", f"SPACE: {SPACE}"])


def not_thoughts(thoughts: Thoughts | None, special: Mapping[str, int]) -> str:
    """To be put after a terminal of free text, so that it does not begin with a think block: in
    one, what looks like a call is none."""
    if thoughts is None or thoughts.opened or thoughts.opener in special:
        return ""
    return rf" & ~/[ \n]*{escaped(thoughts.opener)}(.|\n)*/"
