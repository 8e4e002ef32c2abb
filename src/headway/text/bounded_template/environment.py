"""The environment that compiles and renders chat templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from types import MethodType
from typing import Any

from jinja2 import TemplateSyntaxError, nodes, pass_context
from jinja2.ext import LoopControlExtension
from jinja2.runtime import LoopContext, Macro, Undefined
from jinja2.sandbox import SandboxedEnvironment
from jinja2.utils import Namespace

from headway.text.bounded_template.allowance import CALL, KEYS, BoundedContext, checked_key
from headway.text.bounded_template.library import FILTERS, METHODS, TESTS, Function, functions
from headway.text.bounded_template.operators import BINARY
from headway.text.bounded_template.syntax import (
    MAX_SOURCE,
    OPERATORS,
    Bounding,
    GenerationExtension,
)

__all__ = ["BoundedEnvironment"]

_WITH_ATTRIBUTES = (Namespace, LoopContext, Undefined)


@pass_context
def _printed(context: BoundedContext, value: object) -> str:
    """What is printed is laid beside other text, whose wide characters may widen it."""
    text = context.text(value)
    context.spend(4 * len(text))
    return text


class BoundedEnvironment(SandboxedEnvironment):
    """Compiles and renders chat templates. Immutable, so threads may share it."""

    context_class = BoundedContext
    intercepted_binops = frozenset(BINARY)

    def __init__(self, now: Callable[[], datetime], variables: Mapping[str, object]) -> None:
        """`variables` are there in every rendering; `now` is the local time."""
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is computed while compiling
            finalize=_printed,
            cache_size=0,
            extensions=[LoopControlExtension, GenerationExtension],
        )
        self.filters = FILTERS | OPERATORS
        self.tests = dict(TESTS)
        self.globals = {**functions(now), **variables}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_SOURCE:
            raise TemplateSyntaxError(f"it has more than {MAX_SOURCE} characters", 1)
        tree: nodes.Template = Bounding().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        return BINARY[operator](context, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """The method, else the item, as Jinja2 does it."""
        if isinstance(obj, _WITH_ATTRIBUTES):
            if attribute.startswith("_"):
                return self.undefined(obj=obj, name=attribute)
            return getattr(obj, attribute, self.undefined(obj=obj, name=attribute))
        kind = dict if isinstance(obj, dict) else str if isinstance(obj, str) else None
        if kind and (method := METHODS[kind].get(attribute)):
            return Function(method, obj)
        if kind is dict and attribute in obj:
            return obj[attribute]
        return self.undefined(obj=obj, name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """The item, else the method, as Jinja2 does it."""
        if isinstance(argument, KEYS) or isinstance(obj, Undefined):
            try:
                return obj[checked_key(argument)]
            except (TypeError, LookupError):
                if isinstance(argument, str):
                    return self.getattr(obj, argument)
        return self.undefined(obj=obj, name=argument)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("_loop_vars", None)  # Jinja2's own; nothing here asks for them
        if isinstance(obj, Function):
            return obj(context, *args, **kwargs)
        if isinstance(obj, Macro):
            text = obj(*args, **kwargs)
            context.spend(2 * CALL + 4 * len(text))
            return text
        if isinstance(obj, MethodType) and isinstance(obj.__self__, LoopContext):
            context.weigh(args)
            return obj(*args, **kwargs)
        if isinstance(obj, Undefined):
            return obj()  # its own error
        raise TypeError(f"{type(obj).__name__!r} is nothing to call")
