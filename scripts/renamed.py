"""An agent's file with other names, as if somebody else had written it: what do the probes see by behaviour alone?

    python scripts/renamed.py ppo > my_ppo.py

Every name that the file itself gives is changed: of functions, classes, constants, parameters, variables, of fields and
methods of its classes. The contract stays: Config and its fields, Agent and its fields, make and train with their
parameters; and the keys of dictionaries with them, which name the diagnostics and the layers.
"""

import argparse
import ast
import builtins
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from rlref.contract import CONTRACT

ROOT = Path(__file__).resolve().parent.parent
CLASSES, FUNCTIONS = ("Config", "Agent"), ("make", "train")  # of the contract
COUNTERS = {"count"}  # fields of optax's states that a field of the file's own is called like
Function = ast.FunctionDef | ast.Lambda


def other(name: str) -> str:
    """What a name is changed to."""
    if name.isupper() and len(name) > 1:
        return f"MY_{name}"
    return f"My{name}" if name[0].isupper() else f"my_{name}"


def renamed(source: str) -> str:
    """`source` with other names. Raises ValueError where a new name is taken, or a call cannot be told."""
    tree = ast.parse(source)
    taken = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names = Names(tree)
    if clash := taken & {other(name) for name in names.variables | names.members}:
        raise ValueError(f"the names {', '.join(sorted(clash))} are taken")
    return ast.unparse(names.visit(tree)) + "\n"


def parameters(node: Function) -> list[ast.arg]:
    """All of a function's parameters."""
    own, star = node.args, [x for x in (node.args.vararg, node.args.kwarg) if x is not None]
    return [*own.posonlyargs, *own.args, *own.kwonlyargs, *star]


def targets(statement: ast.stmt) -> list[ast.Name]:
    """The names that a statement of a class's body gives a value or a type."""
    found: Iterable[ast.expr] = ()
    if isinstance(statement, ast.Assign):
        found = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        found = [statement.target]
    return [x for x in found if isinstance(x, ast.Name)]


def root(node: ast.expr) -> str:
    """The name that a chain of attributes, such as jax.lax.scan, begins with; '' for anything else."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


class Names(ast.NodeTransformer):
    """The names of a file, by what they name; as a transformer it changes them in the file's tree."""

    def __init__(self, tree: ast.Module):
        nodes = list(ast.walk(tree))
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
        imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        self.imported = {(x.asname or x.name).split(".")[0] for node in imports for x in node.names}
        self.settings: set[str] = set()
        """fields of the contract's classes"""
        self.members: set[str] = set()
        """fields and methods of the others"""
        for node in classes:
            into = self.settings if node.name in CLASSES else self.members
            into |= {x.id for statement in node.body for x in targets(statement)}
            into |= {x.name for x in node.body if isinstance(x, ast.FunctionDef) and not x.name.startswith("__")}
        methods = {id(x) for node in classes for x in node.body}
        self.own = {x.name for x in functions if id(x) not in methods} | {x.name for x in classes}
        self.own -= {*CONTRACT}
        """functions and classes, whose keywords are theirs"""
        bound = self.own | {x.id for x in nodes if isinstance(x, ast.Name) and not isinstance(x.ctx, ast.Load)}
        bound |= {x.arg for node in nodes if isinstance(node, Function) for x in parameters(node)}
        bound |= {x.name for x in nodes if isinstance(x, ast.ExceptHandler) and x.name}
        self.variables = {x for x in bound - {*CONTRACT, "self", "cls"} - self.imported if not x.startswith("_")}
        self.variables -= {*dir(builtins)}
        self.members -= {x for x in self.members if x.startswith("_")}
        self.of_contract = {x.arg for node in functions for x in parameters(node) if annotation(x) in CLASSES}
        for assignment in (x for x in nodes if isinstance(x, ast.Assign)):
            self.of_contract |= set(self.contract_targets(assignment))

    def contract_targets(self, node: ast.Assign) -> Iterable[str]:
        """Which names an assignment makes a Config or an Agent."""
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            for name, value in pairs:
                made = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "make"
                if isinstance(name, ast.Name) and (made or (isinstance(value, ast.Attribute) and self.is_kept(value))):
                    yield name.id

    def is_kept(self, node: ast.expr) -> bool:
        """Whether an expression is a Config, an Agent or an environment, whose fields and methods keep their names."""
        if isinstance(node, ast.Attribute):
            return node.attr in ("config", "env")  # of a Task
        return isinstance(node, ast.Name) and (node.id in self.of_contract or node.id == "env")

    # Names.

    def variable(self, name: str) -> str:
        return other(name) if name in self.variables else name

    def member(self, name: str) -> str:
        return other(name) if name in self.members else name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.variable(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        self.generic_visit(node)
        node.arg = self.variable(node.arg)
        return node

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
        return ast.Nonlocal([self.variable(x) for x in node.names])

    def visit_Global(self, node: ast.Global) -> ast.AST:
        return ast.Global([self.variable(x) for x in node.names])

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        self.generic_visit(node)
        node.name = node.name and self.variable(node.name)
        return node

    # Functions and classes. What they say of themselves speaks of the old names, so it goes.

    def visit_Module(self, node: ast.Module) -> ast.AST:
        return self.visited(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name not in FUNCTIONS:
            node.name = self.variable(node.name)
            return self.visited(node)
        kept = self.variables & {x.arg for x in parameters(node)}  # callers may give them by name
        self.variables -= kept
        self.visited(node)
        self.variables |= kept
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        fields = {id(x): x.id for statement in node.body for x in targets(statement)}
        methods = {id(x): x.name for x in node.body if isinstance(x, ast.FunctionDef)}
        of_contract = node.name in CLASSES
        node.name = self.variable(node.name)
        found = [x for statement in node.body for x in targets(statement)]
        functions = [x for x in node.body if isinstance(x, ast.FunctionDef)]
        self.visited(node)
        # A field or a method is called the same as a variable in another place, and is none.
        new = [x for statement in node.body for x in targets(statement)]
        for old, field in zip(found, new, strict=True):
            field.id = fields[id(old)] if of_contract else self.member(fields[id(old)])
        for method in functions:
            method.name = self.member(methods[id(method)])
        return node

    def visited(self, node: ast.Module | ast.FunctionDef | ast.ClassDef) -> ast.AST:
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)

    # Fields and keywords.

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if self.is_member(node):
            node.attr = other(node.attr)
        return self.generic_visit(node)

    def is_member(self, node: ast.Attribute) -> bool:
        """Whether an attribute is a field or a method of one of the file's own classes."""
        if node.attr not in self.members or root(node) in self.imported or self.is_kept(node.value):
            return False
        if node.attr in COUNTERS:
            return isinstance(node.value, ast.Name)
        return not (hasattr(np.ndarray, node.attr) and getattr(node, "called", False))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute):
            node.func.called = True  # type: ignore[attr-defined]
        function: ast.expr = node.func
        how: Callable[[str], str | None] = str
        if isinstance(function, ast.Name) and function.id == "partial" and node.args:
            function = node.args[0]
        name = function.id if isinstance(function, ast.Name) else ""
        of_fields = isinstance(function, ast.Attribute) and function.attr == "_replace"
        if name in self.own:
            how = self.keyword
        elif of_fields or (name == "replace" and not self.is_kept(node.args[0])):
            how = self.member
        elif name in self.variables and (whose := [x.arg for x in node.keywords if self.keyword(x.arg) != x.arg]):
            raise ValueError(f"line {node.lineno}: whose are the keywords {', '.join(map(str, whose))}?")
        for keyword in node.keywords:
            if keyword.arg is not None:
                keyword.arg = how(keyword.arg)
        return self.generic_visit(node)

    def keyword(self, name: str | None) -> str | None:
        return other(name) if name is not None and name in self.variables | self.members else name


def annotation(parameter: ast.arg) -> str:
    """The name of a parameter's type; '' if it is not a name alone."""
    return parameter.annotation.id if isinstance(parameter.annotation, ast.Name) else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", choices=("ppo", "dqn", "cem"))
    print(renamed((ROOT / "rlref" / f"{parser.parse_args().agent}.py").read_text()), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
