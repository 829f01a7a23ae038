"""Where a bug can be put in a function of JavaScript, Java, Go, C++ or Rust, by tree-sitter's syntax trees.

The kinds are those of data_prep/pyfix.py under the same names, and what each leaves alone is left alone here too. One
set of rules serves all five languages: the grammars name most nodes alike, and the tables below hold the rest. Types
are not checked, so a bug may be one that a compiler finds.

Positions are in bytes of the file. Nothing is imported from, compiled from, or run of the sources.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from decoding.commandline import UserError

if TYPE_CHECKING:
    import tree_sitter

Edit = tuple[int, int, bytes]  # (start, end, replacement)


def both_ways(pairs: str) -> dict[str, list[str]]:
    """Return a table name -> names that are taken for it, from ``left/right`` words."""
    table: dict[str, list[str]] = {}
    for pair in pairs.split():
        left, right = pair.split("/")
        table.setdefault(left, []).append(right)
        table.setdefault(right, []).append(left)
    return table


@dataclass(frozen=True, slots=True)
class Language:
    """What is particular to a language; ``functions`` are the node types of functions and methods with a body."""

    title: str
    extensions: tuple[str, ...]
    grammar: str  # the module of the tree-sitter grammar
    functions: tuple[str, ...]
    methods: dict[str, list[str]]  # names of functions that are taken for each other
    slices: frozenset[str] = frozenset()  # functions whose arguments are the bounds of a slice
    constants: tuple[tuple[str, str], ...] = ()  # beside true and false: what stands for what as a value


LANGUAGES = {
    "js": Language(
        "JavaScript",
        ("cjs", "js", "jsx", "mjs"),
        "tree_sitter_javascript",
        (
            "function_declaration",
            "generator_function_declaration",
            "method_definition",
            "arrow_function",
            "function_expression",
            "generator_function",
        ),
        both_ways("""
            startsWith/endsWith trimStart/trimEnd trim/trimEnd indexOf/lastIndexOf toLowerCase/toUpperCase keys/values
            entries/keys push/unshift pop/shift some/every find/filter findIndex/findLastIndex slice/splice min/max
            floor/ceil add/delete padStart/padEnd has/get querySelector/querySelectorAll match/search
            addEventListener/removeEventListener encodeURIComponent/decodeURIComponent parseInt/parseFloat
            resolve/reject
        """),
        slices=frozenset({"slice", "substring", "subarray"}),
        constants=(("null", "false"), ("''", "null"), ('""', "null")),
    ),
    "java": Language(
        "Java",
        ("java",),
        "tree_sitter_java",
        ("method_declaration", "constructor_declaration", "compact_constructor_declaration"),
        both_ways("""
            startsWith/endsWith indexOf/lastIndexOf toLowerCase/toUpperCase addFirst/addLast getFirst/getLast
            removeFirst/removeLast pollFirst/pollLast peekFirst/peekLast keySet/values containsKey/containsValue
            put/putIfAbsent min/max floor/ceil isDigit/isLetter isUpperCase/isLowerCase anyMatch/allMatch lock/unlock
            isEmpty/isBlank add/remove getKey/getValue pop/peek floorKey/ceilingKey first/last before/after
        """),
        slices=frozenset({"substring", "subList", "copyOfRange"}),
        constants=(('""', "null"),),
    ),
    "go": Language(
        "Go",
        ("go",),
        "tree_sitter_go",
        ("function_declaration", "method_declaration"),
        both_ways("""
            HasPrefix/HasSuffix TrimPrefix/TrimSuffix TrimLeft/TrimRight ToLower/ToUpper Index/LastIndex Lock/Unlock
            RLock/RUnlock len/cap Min/Max min/max Floor/Ceil Before/After Encode/Decode Marshal/Unmarshal
            Contains/ContainsAny IsDigit/IsLetter IsUpper/IsLower Front/Back PushFront/PushBack Load/Store Get/Set
        """),
    ),
    "cpp": Language(
        "C++",
        ("cc", "cpp", "cxx", "h", "hh", "hpp", "hxx"),
        "tree_sitter_cpp",
        ("function_definition",),
        both_ways("""
            begin/end cbegin/cend rbegin/rend front/back push_back/push_front pop_back/pop_front find/rfind
            find_first_of/find_last_of min/max lower_bound/upper_bound floor/ceil size/capacity lock/unlock
            tolower/toupper isdigit/isalpha isupper/islower any_of/all_of load/store min_element/max_element
        """),
        slices=frozenset({"substr"}),
    ),
    "rust": Language(
        "Rust",
        ("rs",),
        "tree_sitter_rust",
        ("function_item",),
        both_ways("""
            starts_with/ends_with is_some/is_none is_ok/is_err trim_start/trim_end strip_prefix/strip_suffix find/rfind
            min/max any/all first/last to_lowercase/to_uppercase take/skip take_while/skip_while floor/ceil keys/values
            push_back/push_front pop_back/pop_front and/or ok/err is_alphabetic/is_numeric is_uppercase/is_lowercase
            wrapping_add/wrapping_sub saturating_add/saturating_sub checked_add/checked_sub split_first/split_last
        """),
    ),
}


# ---------------------------------------------------------------------------------------------------------------------
# Trees

_DECLARATIONS = {"lexical_declaration", "variable_declaration"}
# What a function can be the value or the main part of, so that both are one piece of text.
_WRAPPERS = _DECLARATIONS | {
    "variable_declarator", "assignment_expression", "expression_statement", "export_statement", "pair",
    "field_definition", "template_declaration",
}  # fmt: skip
_COMMENTS = {"comment", "line_comment", "block_comment"}
_STRINGS = {
    "string", "template_string", "string_literal", "raw_string_literal", "interpreted_string_literal",
    "concatenated_string",
}  # fmt: skip


@cache
def _parser(name: str) -> tuple[tree_sitter.Parser, tree_sitter.Query]:
    language = LANGUAGES[name]
    try:
        import tree_sitter

        grammar = tree_sitter.Language(importlib.import_module(language.grammar).language())
    except ImportError as error:
        raise UserError(f"bugs: {language.title} needs {error.name}: pip install 'cad-train[bugs]'") from None
    query = tree_sitter.Query(grammar, f"[{' '.join(f'({kind})' for kind in language.functions)}] @function")
    return tree_sitter.Parser(grammar), query


def parse(language: str, data: bytes) -> tree_sitter.Tree | None:
    """Return the syntax tree of a file, None where it has a syntax error (or what the grammar takes for one).

    Raises:
        UserError: tree-sitter or the grammar of this language is not installed.
    """
    tree = _parser(language)[0].parse(data)
    return None if tree.root_node.has_error else tree


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a file: its name, and the bytes of its whole lines (``start``, ``end``)."""

    name: str
    start: int
    end: int
    unit: tuple[int, int]  # the bytes of the function without what else is on its lines


def functions(language: str, data: bytes, tree: tree_sitter.Tree) -> Iterator[Function | None]:
    """Yield named functions and methods in file order, not those inside others; None for one that shares its lines."""
    import tree_sitter

    found = tree_sitter.QueryCursor(_parser(language)[1]).captures(tree.root_node).get("function", [])
    inside = 0
    for node in sorted(found, key=lambda node: node.start_byte):
        name = _name(node)
        if node.start_byte < inside or name is None or node.child_by_field_name("body") is None:
            continue
        inside = node.end_byte
        unit = _unit(node)
        start = data.rfind(b"\n", 0, unit.start_byte) + 1
        end = data.find(b"\n", unit.end_byte) + 1 or len(data)
        rest = re.sub(rb"//.*|/\*.*?\*/", b"", data[unit.end_byte : end])
        alone = not data[start : unit.start_byte].strip() and not rest.strip(b";, \t\r\n")
        yield Function(name, start, end, (unit.start_byte, unit.end_byte)) if alone else None


def _name(node: tree_sitter.Node) -> str | None:
    """The last part of a function's name, None where it has none."""
    holder = node.parent
    named = node.child_by_field_name("name") or node.child_by_field_name("declarator")
    if named is None and holder is not None:
        fields = {"variable_declarator": "name", "assignment_expression": "left", "pair": "key"}
        field = fields.get(holder.type, "property" if holder.type == "field_definition" else None)
        named = holder.child_by_field_name(field) if field else None
    while named is not None and named.child_count:
        inner = next(filter(None, map(named.child_by_field_name, ("declarator", "name", "property", "index"))), None)
        if inner is None and named.type == "reference_declarator":  # C++: T& f()
            inner = named.named_children[-1]
        if inner is None:
            break
        named = inner
    text = named.text.decode() if named is not None else ""
    return text if 0 < len(text) <= 80 and "\n" not in text else None


def _unit(node: tree_sitter.Node) -> tree_sitter.Node:
    while node.parent is not None and node.parent.type in _WRAPPERS:
        parent = node.parent
        if parent.type in _DECLARATIONS and parent.named_child_count > 1:
            break
        node = parent
    return node


@dataclass(eq=False, slots=True)
class _Node:
    type: str
    start: int
    end: int
    line: int
    end_line: int
    field: str | None
    named: bool
    parent: _Node | None
    children: list[_Node]

    def child(self, *fields: str) -> _Node | None:
        return next((child for child in self.children if child.field in fields), None)

    def parts(self) -> list[_Node]:
        """The named children, comments aside."""
        return [child for child in self.children if child.named and child.type not in _COMMENTS]

    def walk(self) -> Iterator[_Node]:
        """Yield this node and those in it, but for macro arguments and types: what stands there is no expression."""
        if self.type not in _OPAQUE:
            yield self
            for child in self.children:
                yield from child.walk()

    def leaves(self) -> Iterator[_Node]:
        if self.children:
            for child in self.children:
                yield from child.leaves()
        elif self.start < self.end:
            yield self


_OPAQUE = {
    "token_tree", "macro_definition", "template_argument_list", "type_arguments", "array_type", "type_descriptor",
    "attribute_item", "annotation", "marker_annotation", "preproc_def", "preproc_function_def",
}  # fmt: skip


def _copy(cursor: tree_sitter.TreeCursor, parent: _Node | None) -> _Node:
    """The subtree at ``cursor`` as plain objects: attributes of tree-sitter's nodes cost a call into C each."""
    raw = cursor.node
    node = _Node(
        raw.type,
        raw.start_byte,
        raw.end_byte,
        raw.start_point[0],
        raw.end_point[0],
        cursor.field_name,
        raw.is_named,
        parent,
        [],
    )
    if cursor.goto_first_child():
        node.children.append(_copy(cursor, node))
        while cursor.goto_next_sibling():
            node.children.append(_copy(cursor, node))
        cursor.goto_parent()
    return node


def _subtree(tree: tree_sitter.Tree, start: int, end: int) -> _Node:
    return _copy(tree.root_node.descendant_for_byte_range(start, end).walk(), None)


class Source:
    """A function in its file, and where bugs can be put in it.

    Raises:
        RecursionError: expressions nested hundreds deep.
    """

    def __init__(self, language: str, data: bytes, tree: tree_sitter.Tree, function: Function):
        self.language, self.data, self.function = language, data, function
        self.rules = LANGUAGES[language]
        self.unit = _subtree(tree, *function.unit)
        self.node = next(node for node in self.unit.walk() if node.type in self.rules.functions and node.child("body"))
        self.body = self.node.child("body")
        self.nodes = list(self.body.walk())

    def text(self, node: _Node) -> str:
        """The text of a node."""
        return self.data[node.start : node.end].decode()

    def apply(self, edits: list[Edit]) -> bytes:
        """The file with these edits, which do not overlap."""
        data = self.data
        for start, end, replacement in sorted(edits, reverse=True):
            data = data[:start] + replacement + data[end:]
        return data

    def document(self, data: bytes) -> str:
        """The function's lines in the file, or in the file as ``apply`` changed it."""
        return data[self.function.start : self.function.end + len(data) - len(self.data)].decode()

    def is_function_still(self, edits: list[Edit], data: bytes) -> bool:
        """Whether the changed file parses, with the same tokens but for the edited ones.

        Glued to its neighbour, an operator can be another one or open a comment: ``a*-b``, ``a**p``.
        """
        tree = parse(self.language, data)
        if tree is None:
            return False
        start, end = self.function.unit
        changed = _subtree(tree, start, end + len(data) - len(self.data))
        if (changed.type, changed.start) != (self.unit.type, self.unit.start):
            return False
        kept, edited, shift = [(leaf.start, leaf.end) for leaf in self.unit.leaves()], [], 0
        for first, last, replacement in sorted(edits):
            delta = len(replacement) - (last - first)
            first, last = first + shift, last + shift
            before = [(start, end) for start, end in kept if end <= first]
            kept = before + [(start + delta, end + delta) for start, end in kept if start >= last]
            edited.append((first, last + delta))
            shift += delta
        left = [
            (leaf.start, leaf.end)
            for leaf in changed.leaves()
            if not any(first <= leaf.start and leaf.end <= last for first, last in edited)
        ]
        return left == kept

    def group(self) -> str:
        """A hash of the function's tokens without its name, comments and layout: the same for its copies."""
        tokens = [self.text(leaf) for leaf in self.unit.leaves() if leaf.type not in _COMMENTS]
        tokens = ["" if token == self.function.name else token for token in tokens]
        return hashlib.sha256("\0".join(tokens).encode()).hexdigest()[:16]


# ---------------------------------------------------------------------------------------------------------------------
# The kinds

_OPERATORS = {
    "+": ("-",), "-": ("+",), "*": ("/", "+"), "/": ("*",), "%": ("/",), "**": ("*",), "<<": (">>",), ">>": ("<<",),
    ">>>": (">>",), "&": ("|",), "|": ("&",), "^": ("|",), "&^": ("&",), "&&": ("||",), "||": ("&&",), "??": ("&&",),
    "and": ("or",), "or": ("and",),
}  # fmt: skip
_COMPARISONS = {
    "<": ("<=", ">"), "<=": ("<", ">="), ">": (">=", "<"), ">=": (">", "<="), "==": ("!=",), "!=": ("==",),
    "===": ("!==",), "!==": ("===",),
}  # fmt: skip
_ASSIGNMENTS = {
    "assignment_expression", "augmented_assignment_expression", "assignment_statement", "compound_assignment_expr",
}  # fmt: skip
_INTEGERS = {"number", "decimal_integer_literal", "int_literal", "number_literal", "integer_literal"}
_CALLS = {"call_expression", "new_expression", "method_invocation", "object_creation_expression"}
_PLACES = {  # expressions that a sign can be put before and a number added to without brackets
    "identifier", "member_expression", "subscript_expression", "field_access", "array_access", "selector_expression",
    "index_expression", "field_expression", "qualified_identifier", "scoped_identifier", *(_CALLS - {"new_expression"}),
}  # fmt: skip


def _is_string(node: _Node) -> bool:
    return node.type in _STRINGS or (node.type == "binary_expression" and any(map(_is_string, node.parts())))


def _operations(source: Source) -> Iterator[tuple[_Node, str, _Node, _Node]]:
    """Yield (operator, its text, left, right) of binary operations."""
    for node in source.nodes:
        if node.type == "binary_expression":
            left, operator, right = node.child("left"), node.child("operator"), node.child("right")
            if left and operator and right:
                yield operator, source.text(operator), left, right


def _operator(source: Source) -> Iterator[list[Edit]]:
    for operator, text, left, right in _operations(source):
        if text not in _OPERATORS or _is_string(left) or _is_string(right):
            continue
        # In C++ both are streams more often than shifts.
        if source.language == "cpp" and text in ("<<", ">>") and not {left.type, right.type} & _INTEGERS:
            continue
        for new in _OPERATORS[text]:
            yield [(operator.start, operator.end, new.encode())]
    for node in source.nodes:
        operator, right = node.child("operator"), node.child("right")
        if node.type in _ASSIGNMENTS and operator and right and not any(map(_is_string, [right, *right.parts()])):
            text = source.text(operator)
            if text.endswith("=") and text[:-1] in _OPERATORS:
                for new in _OPERATORS[text[:-1]]:
                    yield [(operator.start, operator.end, f"{new}=".encode())]


def _comparison(source: Source) -> Iterator[list[Edit]]:
    for operator, text, _, _ in _operations(source):
        for new in _COMPARISONS.get(text, ()):
            yield [(operator.start, operator.end, new.encode())]


def _off_by_one(source: Source) -> Iterator[list[Edit]]:
    for node in source.nodes:
        if node.type in _INTEGERS and node.field != "field" and re.fullmatch(r"-?(0|[1-9]\d*)", source.text(node)):
            value, sign = abs(int(source.text(node))), "-" if source.text(node).startswith("-") else ""
            # Never below zero, and never the -0 that is 0 again: the sign can be the parent's.
            lowest = 1 if sign or node.parent.type == "unary_expression" else 0
            for new in (value - 1, value + 1):
                if new >= lowest:
                    yield [(node.start, node.end, f"{sign}{new}".encode())]
        elif node.type in ("slice_expression", "range_expression"):
            parts = node.parts()
            yield from _bounds(source, parts[1:] if node.type == "slice_expression" else parts)
        elif node.type in _CALLS and (callee := _callee(node)) and source.text(callee) in source.rules.slices:
            yield from _bounds(source, node.child("arguments").parts() if node.child("arguments") else [])


def _bounds(source: Source, bounds: list[_Node]) -> Iterator[list[Edit]]:
    for bound in bounds:
        if bound.type == "binary_expression":
            left, operator, right = bound.child("left"), bound.child("operator"), bound.child("right")
            if left and operator and right and source.text(operator) in "+-" and source.text(right) == "1":
                yield [(left.end, bound.end, b"")]
        elif bound.type in _PLACES:
            for shift in (b" + 1", b" - 1"):
                yield [(bound.end, bound.end, shift)]


# Node type -> the fields that hold the names it binds, None for all of it.
_BINDERS: dict[str, tuple[str, ...] | None] = {
    "formal_parameters": None, "arrow_function": ("parameter",), "catch_clause": ("parameter",),  # JavaScript
    "for_in_statement": ("left",),
    "formal_parameter": ("name",), "catch_formal_parameter": ("name",), "resource": ("name",),  # Java
    "variable_declarator": ("name",), "enhanced_for_statement": ("name",), "lambda_expression": ("parameters",),
    "inferred_parameters": None,
    "variadic_parameter_declaration": ("name",), "short_var_declaration": ("left",), "range_clause": ("left",),  # Go
    "var_spec": ("name",), "const_spec": ("name",),
    "parameter_declaration": ("name", "declarator"), "optional_parameter_declaration": ("declarator",),  # and C++
    "init_declarator": ("declarator",), "declaration": ("declarator",), "for_range_loop": ("declarator",),
    "parameter": ("pattern",), "let_declaration": ("pattern",), "let_condition": ("pattern",),  # Rust
    "for_expression": ("pattern",), "match_arm": ("pattern",), "closure_parameters": None,
}  # fmt: skip
# A name is not yet bound inside these.
_STATEMENTS = {
    "variable_declarator", "short_var_declaration", "var_spec", "const_spec", "init_declarator", "declaration",
    "let_declaration",
}  # fmt: skip
_SCOPES = {
    "statement_block", "block", "constructor_body", "compound_statement", "for_statement", "for_in_statement",
    "enhanced_for_statement", "for_range_loop", "for_expression", "if_statement", "if_expression", "while_statement",
    "while_expression", "catch_clause", "try_with_resources_statement", "switch_case", "switch_block_statement_group",
    "case_statement", "expression_case", "type_case", "communication_case", "match_arm", "arrow_function",
    "function_expression", "generator_function", "lambda_expression", "func_literal", "closure_expression",
    "class_body", *(kind for language in LANGUAGES.values() for kind in language.functions),
}  # fmt: skip
_NOT_NAMES = {"value", "right", "type", "size", "parameters", "default_value", "arguments", "condition"}
_INFERRED = {"", "auto", "var"}


@dataclass(frozen=True, slots=True)
class _Binding:
    name: str
    line: int
    ready: int  # the byte from which on it can be used
    scope: _Node
    type: str | None  # as declared


def _bound(node: _Node) -> Iterator[_Node]:
    if node.type in ("identifier", "shorthand_property_identifier_pattern"):
        yield node
    for child in node.children:
        if child.field not in _NOT_NAMES:
            yield from _bound(child)


def _bindings(source: Source) -> dict[int, _Binding]:
    """The names bound in a function, by the byte where each is bound."""
    found: dict[int, _Binding] = {}
    for node in source.node.walk():
        if node.type not in _BINDERS:
            continue
        fields = _BINDERS[node.type]
        scope = node if node.type in _SCOPES else node.parent
        while scope is not None and scope.type not in _SCOPES:
            scope = scope.parent
        declared = node.child("type") or (node.parent.child("type") if node.parent else None)
        kind = source.text(declared) if declared else ""
        for child in node.children:
            if (fields is not None and child.field not in fields) or child.type in _BINDERS:
                continue
            # What is declared as a pointer is of another type than what is not.
            shape = child.type if child.type in ("pointer_declarator", "array_declarator") else ""
            for name in _bound(child):
                found.setdefault(
                    name.start,
                    _Binding(
                        source.text(name),
                        name.line,
                        node.end if node.type in _STATEMENTS else name.end,
                        scope or source.node,
                        None if kind in _INFERRED else f"{kind} {shape}",
                    ),
                )
    return found


def _is_use(node: _Node) -> bool:
    """Whether an identifier is a variable that is read: no name of a function, field or label, no target."""
    parent = node.parent
    if node.field in ("field", "name", "label", "path", "macro", "constructor", "left_name"):
        return False
    if node.field == "function" and parent.type in _CALLS:
        return False
    if parent.type in ("break_statement", "continue_statement", "labeled_statement", "shorthand_field_initializer"):
        return False
    if parent.type == "literal_element" and parent.field == "key":  # Go: the field of a struct
        return False
    target = parent if parent.type == "expression_list" else node
    return not (target.field == "left" and target.parent.type in _ASSIGNMENTS)


def _variable(source: Source) -> Iterator[list[Edit]]:
    bindings = _bindings(source)
    known: dict[str, list[_Binding]] = {}
    for binding in bindings.values():
        known.setdefault(binding.name, []).append(binding)
    aliases: set[frozenset[str]] = set()  # after y = x, one in place of the other changes nothing
    for node in source.nodes:
        name, value = node.child("name", "declarator", "pattern", "left"), node.child("value", "right")
        if name and value and node.type in {*_STATEMENTS, *_ASSIGNMENTS}:
            aliases.add(frozenset((source.text(name), source.text(value))))
    for node in source.nodes:
        if node.type != "identifier" or node.start in bindings or not _is_use(node):
            continue
        name = source.text(node)
        own = {b.type for b in known.get(name, ()) if b.scope.start <= node.start < b.scope.end}
        if not own:
            continue
        for other, places in known.items():
            if other in (name, "_") or frozenset((name, other)) in aliases:
                continue
            if any(
                b.line < node.line
                and b.ready <= node.start
                and b.scope.start <= node.start < b.scope.end
                and (b.type is None or None in own or b.type in own)
                for b in places
            ):
                yield [(node.start, node.end, other.encode())]


_BLOCKS = {
    "statement_block", "block", "constructor_body", "compound_statement", "statement_list", "switch_case",
    "switch_default", "switch_block_statement_group", "case_statement",
}  # fmt: skip
# Declarations stay: without one, the rest would be about a name that is not there.
_DROPPABLE = {
    "expression_statement", "return_statement", "throw_statement", "break_statement", "continue_statement",
    "assignment_statement", "inc_statement", "dec_statement", "go_statement", "defer_statement", "send_statement",
}  # fmt: skip


def _dropped(source: Source) -> Iterator[list[Edit]]:
    for block in source.nodes:
        statements = block.parts() if block.type in _BLOCKS else []
        # A case's own value is no statement of it.
        statements = [s for s in statements if s.field != "value" and s.type != "switch_label"]
        for statement in statements if len(statements) > 1 else ():
            if statement.type not in _DROPPABLE or statement.end_line > statement.line:
                continue
            text = source.text(statement)
            if statement.end == max(s.end for s in source.body.parts()) and text.rstrip(";") == "return":
                continue  # the function would end there all the same
            if statement.parts() and statement.parts()[0].type in {*_STRINGS, "macro_invocation"}:
                continue  # "use strict"; assert!(x) and the like
            start = source.data.rfind(b"\n", 0, statement.start) + 1
            end = source.data.find(b"\n", statement.end) + 1
            rest = source.data[start : statement.start] + source.data[statement.end : end]
            if end and not re.split(rb"//|/\*", rest)[0].strip(b"; \t\r\n"):
                yield [(start, end, b"")]


def _callee(call: _Node) -> _Node | None:
    """The name that is called, without what it is a part of."""
    node = call.child("function", "name", "constructor", "type")
    while node is not None and node.children:
        node = node.child("property", "field", "name")
    return node


# Calls whose first two arguments nobody takes for each other, or whose order does not count.
_UNSWAPPED = {"min", "max", "Min", "Max", "make", "append"}
_UNSWAPPED_TYPES = {
    "spread_element", "variadic_argument", "arrow_function", "function_expression", "lambda_expression",
    "func_literal", "closure_expression", "function",
}  # fmt: skip


def _but_for_strings(source: Source, node: _Node) -> list[str]:
    if node.type in _STRINGS:
        return ["a string"]
    if not node.children:
        return [source.text(node)]
    return [text for child in node.children for text in _but_for_strings(source, child)]


def _swapped(source: Source) -> Iterator[list[Edit]]:
    for node in source.nodes:
        arguments = node.child("arguments") if node.type in _CALLS else None
        callee = _callee(node) if arguments else None
        if not arguments or (callee and source.text(callee) in _UNSWAPPED):
            continue
        for left, right in pairwise(arguments.parts()):
            if {left.type, right.type} & _UNSWAPPED_TYPES or right.end_line > left.line:
                continue
            # replace("-", "_"): nothing but the text of the strings could tell which comes first.
            if _but_for_strings(source, left) != _but_for_strings(source, right):
                first, second = source.data[left.start : left.end], source.data[right.start : right.end]
                yield [(left.start, left.end, second), (right.start, right.end, first)]


_CONDITIONALS = {
    "if_statement", "while_statement", "do_statement", "ternary_expression", "conditional_expression",
    "if_expression", "while_expression",
}  # fmt: skip


def _negated(source: Source) -> Iterator[list[Edit]]:
    for node in source.nodes:
        test = node.child("condition") if node.type in _CONDITIONALS else None
        while test and test.type in ("parenthesized_expression", "condition_clause") and len(test.parts()) == 1:
            test = test.parts()[0]
        if test is None:
            continue
        if test.type == "unary_expression":
            if source.text(test.children[0]) == "!":
                yield [(test.start, test.parts()[0].start, b"")]
        elif test.type in _PLACES:
            yield [(test.start, test.start, b"!")]
        elif test.type == "binary_expression" and source.text(test.child("operator")) in ("&&", "||", "and", "or"):
            yield [(test.start, test.start, b"!("), (test.end, test.end, b")")]
        # A comparison is left to its own kind: "!(a == b)" would give the bug away by its style.


_BOOLEANS = {"true": "false", "false": "true"}
_VALUE_OF = {
    "return_statement", "variable_declarator", "assignment_expression", "ternary_expression", "binary_expression",
    "pair",
}  # fmt: skip


def _constant(source: Source) -> Iterator[list[Edit]]:
    values = dict(source.rules.constants)
    for node in source.nodes:
        if node.type in ("true", "false", "boolean_literal") and node.named:
            yield [(node.start, node.end, _BOOLEANS[source.text(node)].encode())]
        elif node.parent.type in _VALUE_OF and node.end - node.start <= 4 and (new := values.get(source.text(node))):
            operator = node.parent.child("operator")  # x == null is a comparison, x || '' gives a value
            if node.parent.type != "binary_expression" or (operator and source.text(operator) in ("||", "??")):
                yield [(node.start, node.end, new.encode())]


def _method(source: Source) -> Iterator[list[Edit]]:
    for node in source.nodes:
        callee = _callee(node) if node.type in ("call_expression", "method_invocation") else None
        if callee:
            for new in source.rules.methods.get(source.text(callee), ()):
                yield [(callee.start, callee.end, new.encode())]


# The same names as pyfix.KINDS, in the same order.
KINDS: dict[str, Callable[[Source], Iterator[list[Edit]]]] = {
    "operator": _operator,
    "comparison": _comparison,
    "off_by_one": _off_by_one,
    "variable": _variable,
    "dropped": _dropped,
    "swapped": _swapped,
    "negated": _negated,
    "constant": _constant,
    "method": _method,
}
