"""Which fields of a dataclass the source reads, followed by the types that its annotations say."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Types = frozenset[str]
NONE: Types = frozenset()


@dataclass
class Source:
    """What modules declare: fields and methods of classes, and what functions return."""

    fields: dict[str, dict[str, Types]] = field(default_factory=lambda: defaultdict(dict))
    dataclasses: set[str] = field(default_factory=set)
    bases: dict[str, list[str]] = field(default_factory=dict)
    returns: dict[str, Types] = field(default_factory=dict)
    own: dict[str, set[str]] = field(default_factory=dict)
    """Names of fields that a dataclass declares itself."""
    aliases: dict[str, Types] = field(default_factory=dict)

    def unalias(self, types: Types) -> Types:
        """Put what a name of a type stands for in its place, beside it."""
        return types.union(*(self.aliases.get(name, NONE) for name in types))

    def attribute(self, owner: str, name: str) -> Types:
        """Give the types of an attribute of a class, its bases included."""
        if name in self.fields.get(owner, {}):
            return self.fields[owner][name]
        found = [self.attribute(base, name) for base in self.bases.get(owner, [])]
        return frozenset().union(*found)

    def declarers(self, owner: str, name: str) -> Iterable[str]:
        """Name the class that declares an attribute: this one or a base."""
        if name in self.own.get(owner, set()):
            yield owner
        for base in self.bases.get(owner, []):
            yield from self.declarers(base, name)


def named_in(annotation: ast.expr | None) -> Types:
    """Name every class that an annotation names, at any depth."""
    if annotation is None:
        return NONE
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    nodes = list(ast.walk(annotation))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return frozenset(names | {node.attr for node in nodes if isinstance(node, ast.Attribute)})


def declare(trees: Iterable[ast.Module]) -> Source:
    """Read what all modules declare."""
    source = Source()
    for tree in trees:
        for line in tree.body:
            for target, value in _assigned(line):
                if isinstance(target, ast.Name) and isinstance(value, ast.BinOp | ast.Subscript):
                    source.aliases[target.id] = named_in(value)
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                source.returns[node.name] = source.returns.get(node.name, NONE) | named_in(
                    node.returns
                )
            if not isinstance(node, ast.ClassDef):
                continue
            bases = frozenset().union(*map(named_in, node.bases))
            source.bases[node.name] = sorted(bases - {node.name})
            record = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
            if record:
                source.dataclasses.add(node.name)
            own = source.own.setdefault(node.name, set())
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    source.fields[node.name][line.target.id] = named_in(line.annotation)
                    if record and "ClassVar" not in named_in(line.annotation):
                        own.add(line.target.id)
                elif isinstance(line, ast.FunctionDef):
                    source.fields[node.name][line.name] = named_in(line.returns)
                    if line.name == "__init__":
                        _declare_self(source, node.name, line)
    return source


def _declare_self(source: Source, owner: str, function: ast.FunctionDef) -> None:
    """Read the attributes that a constructor sets: from its parameters and by calls."""
    types = _parameters(function, owner)
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            source.fields[owner][node.target.attr] = named_in(node.annotation)
        for target, value in _assigned(node):
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                found = _infer(value, types, source)
                known = source.fields[owner].get(target.attr, NONE)
                source.fields[owner][target.attr] = known | found


def _parameters(
    function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, owner: str | None
) -> dict[str, Types]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    types = {each.arg: named_in(each.annotation) for each in every if each.annotation}
    if owner is not None and every and every[0].arg in ("self", "cls"):
        types[every[0].arg] = frozenset({owner})
    return types


def _assigned(node: ast.AST) -> Iterable[tuple[ast.expr, ast.expr]]:
    """Pair targets with values; tuples of equal length element by element."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, ast.NamedExpr):
        pairs = [(node.target, node.value)]
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        pairs = [(node.target, node.iter)]
    elif isinstance(node, ast.With | ast.AsyncWith):
        pairs = [
            (item.optional_vars, item.context_expr) for item in node.items if item.optional_vars
        ]
    for target, value in pairs:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            yield from zip(target.elts, value.elts, strict=False)
        elif isinstance(target, ast.Tuple):
            yield from ((each, value) for each in target.elts)
        else:
            yield target, value


def _infer(node: ast.expr, types: Mapping[str, Types], source: Source) -> Types:
    """Give the classes that a value may be of, or hold; none where nothing says it."""
    match node:
        case ast.Name(id=name):
            return types.get(name, NONE)
        case ast.Attribute(value=value, attr=name):
            owners = source.unalias(_infer(value, types, source))
            found = (source.attribute(owner, name) for owner in owners)
            return frozenset().union(types.get(ast.unparse(node), NONE), *found)
        case ast.Call(func=ast.Name(id="replace" | "sorted" | "list" | "tuple"), args=[first, *_]):
            return _infer(first, types, source)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            if name in source.bases:
                return frozenset({name})
            if name in ("zip", "enumerate", "reversed", "from_dict", "next", "iter"):
                found = [_infer(each, types, source) for each in arguments]
                named = [named_in(each) for each in arguments if name == "from_dict"]
                return frozenset().union(*found, *named)
            return types.get(name, NONE) or source.returns.get(name, NONE)
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=arguments):
            owners = source.unalias(_infer(value, types, source))
            found = frozenset().union(*(source.attribute(owner, name) for owner in owners))
            if name == "replace" and arguments:
                return found | _infer(arguments[0], types, source)
            if name in ("items", "values", "get", "setdefault", "pop"):
                return owners
            if not owners:  # a module's function or a class
                return frozenset({name}) if name in source.bases else source.returns.get(name, NONE)
            return found
        case ast.Subscript(value=value) | ast.Await(value=value) | ast.Starred(value=value):
            return _infer(value, types, source)
        case ast.IfExp(body=one, orelse=other):
            return _infer(one, types, source) | _infer(other, types, source)
        case ast.BoolOp(values=values) | ast.Tuple(elts=values) | ast.List(elts=values):
            return frozenset().union(*(_infer(value, types, source) for value in values))
        case ast.NamedExpr(value=value):
            return _infer(value, types, source)
        case ast.ListComp() | ast.GeneratorExp():
            inner = _locals(node, types, source)
            return _infer(node.elt, inner, source)
    return NONE


def _locals(scope: ast.AST, types: Mapping[str, Types], source: Source) -> dict[str, Types]:
    """Give the types of a scope's names, by its annotations and by what is assigned."""
    known = dict(types)
    nodes = list(ast.walk(scope))
    for _ in range(2):  # a name may be used above where the walk meets its assignment
        for node in nodes:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                known[node.target.id] = named_in(node.annotation)
            for target, value in _assigned(node):
                if isinstance(target, ast.Name):
                    known[target.id] = known.get(target.id, NONE) | _infer(value, known, source)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                name = ast.unparse(node.args[0])
                known[name] = known.get(name, NONE) | named_in(node.args[1])
    return known


def read_fields(trees: Iterable[ast.Module]) -> tuple[Source, set[tuple[str, str]]]:
    """Read which class's which fields the modules read."""
    trees = list(trees)
    source = declare(trees)
    read: set[tuple[str, str]] = set()

    def visit(node: ast.AST, types: Mapping[str, Types], owner: str | None) -> None:
        for child in ast.iter_child_nodes(node):
            inner, within = types, owner
            if isinstance(child, ast.ClassDef):
                within = child.name
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                inner = _locals(child, {**types, **_parameters(child, owner)}, source)
            if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Load):
                for each in source.unalias(_infer(child.value, inner, source)):
                    read.update((by, child.attr) for by in source.declarers(each, child.attr))
            visit(child, inner, within)

    for tree in trees:
        visit(tree, _module(tree, source), None)
    return source, read


def _module(tree: ast.Module, source: Source) -> dict[str, Types]:
    """Give the types of a module's own names."""
    known: dict[str, Types] = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            known[node.target.id] = named_in(node.annotation)
        for target, value in _assigned(node):
            if isinstance(target, ast.Name):
                known[target.id] = _infer(value, known, source)
    return known
