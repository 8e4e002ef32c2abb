"""Syntax trees that charge for themselves, and the limits of a template's source."""

# ruff: noqa: N802, N815 (Jinja2 finds visitors by these names)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import TemplateSyntaxError, nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from headway.text.bounded_template.allowance import NODE, BoundedContext, checked_key
from headway.text.bounded_template.operators import COMPARISONS, concatenate, cut

__all__ = ["MAX_DEPTH", "MAX_NODES", "MAX_SOURCE", "OPERATORS", "Bounding", "GenerationExtension"]

MAX_SOURCE = 128 * 2**10
"""Characters; the longest templates of known models have some 30,000."""
MAX_NODES = 10_000
MAX_DEPTH = 100
_MAX_NAME = 100

_ALLOWED = frozenset(
    (
        *("Template", "TemplateData", "Output", "Scope", "With", "If", "For", "Break", "Continue"),
        *("Assign", "AssignBlock", "NSRef", "Macro", "CallBlock", "FilterBlock", "ExprStmt"),
        *("Call", "Filter", "Test", "Keyword", "Name", "Const", "Tuple", "List", "Dict", "Pair"),
        *("Getattr", "Getitem", "Slice", "CondExpr", "Compare", "Operand", "And", "Or", "Not"),
        *("Neg", "Pos", "Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow", "Concat"),
    )
)


@pass_context
def _step(context: BoundedContext, cost: int) -> bool:
    context.spend(cost)
    return True


@pass_context
def _weighed(context: BoundedContext, value: object) -> object:
    context.weigh(value)
    return value


# Filters whose names no template can write: the syntax tree is rewritten to call them.
_STEP, _KEY, _CONCATENATE, _CUT, _WEIGHED = "+step", "+key", "~", "[:]", "+weighed"
OPERATORS: dict[str, Callable[..., object]] = {
    _STEP: _step,
    _KEY: checked_key,
    _CONCATENATE: concatenate,
    _CUT: cut,
    _WEIGHED: _weighed,
    **{f"+{name}": function for name, function in COMPARISONS.items()},
}


class Bounding(NodeTransformer):
    """Makes a syntax tree charge what `BoundedEnvironment` does not intercept."""

    def __init__(self) -> None:
        self._cost = 0  # of the body that is being visited, so far
        self._depth = 0
        self._num_nodes = 0

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        """The node that takes this one's place."""
        if type(node).__name__ not in _ALLOWED:
            raise _refused(node, f"{type(node).__name__} is not supported")
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES:
            raise _refused(node, f"it has more than {MAX_NODES} parts")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _refused(node, f"it is nested deeper than {MAX_DEPTH}")
        self._cost += NODE
        result = super().visit(node, *args, **kwargs)
        self._depth -= 1
        return result

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        for name in ("name", "attr", "key"):
            value = getattr(node, name, None)
            if isinstance(value, str) and len(value) > _MAX_NAME:
                raise _refused(node, f"a name is longer than {_MAX_NAME} characters")
        if getattr(node, "dyn_args", None) or getattr(node, "dyn_kwargs", None):
            raise _refused(node, "unpacked arguments (* and **) are not supported")
        return super().generic_visit(node, *args, **kwargs)

    def _repeated(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        """Charges each run of the body; whoever holds it pays for one more."""
        outer, self._cost = self._cost, 0
        self.generic_visit(node)
        step = _call(_STEP, nodes.Const(self._cost, lineno=node.lineno))
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        if isinstance(node, nodes.For) and node.test is not None:
            node.test = nodes.And(step, node.test, lineno=node.lineno)
        self._cost += outer
        return node

    visit_Macro = visit_CallBlock = _repeated

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.recursive:
            raise _refused(node, "a recursive loop is not supported")
        return self._repeated(node)

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        self._cost += 4 * len(node.data)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        if len(node.ops) == 1:
            return _call(f"+{node.ops[0].op}", node.expr, node.ops[0].expr)
        # A chain ends at its first false link, so it stays one. Each value is looked at whole.
        for link in node.ops:
            if link.op in ("in", "notin"):
                raise _refused(node, "'in' within a chain of comparisons is not supported")
            link.expr = _call(_WEIGHED, link.expr)
        node.expr = _call(_WEIGHED, node.expr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call(_CONCATENATE, *node.nodes)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        return _call(_CUT, node.node, *(bound or nodes.Const(None) for bound in bounds))

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        node.key = _call(_KEY, node.key)
        return node


def _call(name: str, value: nodes.Expr, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, list(args), [], None, None, lineno=value.lineno)


def _refused(node: nodes.Node, reason: str) -> TemplateSyntaxError:
    return TemplateSyntaxError(reason, node.lineno or 1)  # operands know no line


class GenerationExtension(Extension):
    """`{% generation %}`, which marks for training what the assistant says, and prints it."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja2 has it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
