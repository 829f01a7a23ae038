"""`key=value` command lines for every entry point.

An entry point declares its settings as one dataclass and hands over:

    @dataclass
    class Config:
        ckpt: list[str] = field(default_factory=list)  # checkpoints to score
        seed: int = 0  # seed of the sampler

    def main(config: Config) -> None: ...

    if __name__ == "__main__":
        run(main, Config, description="Score checkpoints on held-out edits.")

What a person may then write, in one rule each:

- `seed=1`, `--seed=1` and `--seed 1` are the same; nested keys are dotted (`optim.lr=2e-5`).
- YAML files come first (`base.yaml mine.yaml seed=1`); later beats earlier, and keys beat files.
- A list is `ckpt=[a,b]`, `ckpt=a`, `--ckpt a b`, or the key repeated; inside brackets an element that contains a comma
  or another sign of YAML is quoted, as in YAML. A list replaces the default and the file's list, it never extends them.
- A text field takes its text as typed: nothing is quoted, split, interpolated or read as a number.
- `null` or `None` is None where the type allows it. `--flag` alone is true for a true/false key.
- `--help` lists the keys; `--print-config` prints the resolved YAML. Both exit with 0.

Field types: str, int, float, bool, pathlib.Path, Literal, `list[...]` of these, `... | None`, and nested dataclasses.
A field without a default, or with `omegaconf.MISSING`, must be given. Its meaning in `--help` is
`metadata={"help": ...}` or the comment that trails it in the source.

The dataclasses are OmegaConf structured configs, but values do not pass through an OmegaConf container. There `???`
means "missing" and `${` starts an interpolation, with no way to write the first literally; `name=2024_01` becomes
"202401"; and the default of an `init=False` field overwrites what `__post_init__` computed. Documents, prompts and
paths contain such text, so it is read against the field's type here, from PyYAML's node tree, which keeps raw text
and line numbers.
"""

import ast
import dataclasses
import difflib
import inspect
import io
import itertools
import os
import re
import sys
import textwrap
import tokenize
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, Union

import omegaconf
import yaml

Config = TypeVar("Config")

_WIDTH = 120
_NULL_TAG = "tag:yaml.org,2002:null"
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_KINDS = {  # name in the help table, and what an error says it expected
    int: ("integer", "an integer"),
    float: ("number", "a number"),
    bool: ("true/false", "true or false"),
    str: ("text", "text"),
    Path: ("path", "a path"),
}
# A path such as runs/lr=3/final holds a `=` too; only a name directly before the sign makes an assignment.
_ASSIGNMENT = re.compile(r"[A-Za-z_][\w.]*=")


class UserError(Exception):
    """A mistake of the person at the keyboard: printed as one line, exit code 2.

    Under a launcher only rank 0 prints, so raise it for what every process sees alike.
    """


def parse_config(schema: type[Config], argv: list[str], *, description: str = "", usage: str = "") -> Config:
    """Read a command line into an instance of the dataclass `schema`.

    Args:
        schema: the dataclass; see the module's docstring for the field types.
        argv: the arguments, without the program's name.
        description: printed above the table of `--help`.
        usage: what `--help` says follows the program's name, for a command that takes words of its own instead of YAML
            files.

    Raises:
        UserError: an unknown key, a value of the wrong type, a required key that is absent, an unreadable YAML file, or
            a ValueError of the dataclass's `__post_init__`.
        SystemExit: code 0, after `--help` or `--print-config` printed.
        TypeError: the schema itself has a field type that is not supported.
    """
    keys = _keys(schema)
    if "-h" in argv or "--help" in argv:
        _say(_help(keys, description, usage), sys.stdout)
        raise SystemExit(0)
    files, texts = _split_arguments([token for token in argv if token != "--print-config"], keys)
    values: dict[str, object] = {}
    for path in files:
        values.update(_read_yaml(path, keys))
    for name, given in texts.items():
        hint = keys[name].hint
        if len(given) > 1 and not _is_list(hint):
            _say(f"warning: {name} is given {len(given)} times; using the last, {name}={given[-1]!r}", sys.stderr)
        values[name] = _convert(hint, _command_line_node(name, hint, given), name)
    config = _build(schema, keys, values)
    if "--print-config" in argv:
        _say(to_yaml(config).rstrip("\n"), sys.stdout)
        raise SystemExit(0)
    return config


def run(main: Callable[[Config], None], schema: type[Config], *, description: str = "", usage: str = "") -> None:
    """Parse `sys.argv[1:]` and call `main(config)`: the whole body of an entry point's `__main__` block.

    A UserError, from the command line or from `main`, becomes one line `error: ...` on stderr and exit code 2; Ctrl-C
    becomes `interrupted` and exit code 130. Any other exception is a fault of the program and keeps its traceback. A
    script of one checkout that would run with the code of another is refused as a UserError.
    """
    try:
        _check_checkout(Path(sys.argv[0]))
        main(parse_config(schema, sys.argv[1:], description=description, usage=usage))
    except UserError as error:
        _say("error: " + " ".join(str(error).splitlines()), sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        _say("interrupted", sys.stderr)
        sys.exit(130)


def _check_checkout(script: Path) -> None:
    """Refuse a script of one checkout with the code of another: Python's path has the script's folder, not its parent.

    Raises:
        UserError: both places, and what to do.
    """
    ours, its = (path.resolve().parent.parent for path in (Path(__file__), script))
    checkouts = all((each / "pyproject.toml").is_file() for each in (ours, its))  # a copy in site-packages is none
    if its != ours and checkouts and (its / "decoding" / Path(__file__).name).is_file():
        raise UserError(
            f"{script} belongs to the code in {its}, but the code in {ours} is installed and would run: pip install -e "
            f"{its}, or set PYTHONPATH={its}"
        )


def to_yaml(config: object) -> str:
    """The dataclass instance `config` as YAML, in the order of its fields; `from_yaml` reads back an equal instance."""
    return yaml.dump(_tree(config), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**9)


def from_yaml(schema: type[Config], path: str | os.PathLike) -> Config:
    """Read the YAML file `path` into an instance of the dataclass `schema`, as strictly as a command line.

    Raises:
        UserError: as `parse_config`, with the file, and the line where it is of one.
    """
    keys = _keys(schema)
    values = _read_yaml(os.fspath(path), keys)
    try:
        return _build(schema, keys, values)
    except UserError as error:
        raise UserError(f"{os.fspath(path)}: {error}") from error


# --- the schema -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Key:
    name: str  # dotted
    hint: typing.Any  # a dataclass for a group of keys
    default: object  # dataclasses.MISSING where the key must be given
    owner: type  # the dataclass that declares it
    field: dataclasses.Field

    @property
    def is_group(self) -> bool:
        return dataclasses.is_dataclass(self.hint)


def _keys(schema: type) -> dict[str, _Key]:
    return {key.name: key for key in _walk(schema, "", None)}


def _walk(schema: type, prefix: str, instance: object) -> Iterator[_Key]:
    """The keys of `schema` in order, groups before their members; `instance` holds a group's defaults, if any."""
    hints = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        if not field.init:
            continue
        name, hint = prefix + field.name, hints[field.name]
        default = field.default
        if instance is not None:
            default = getattr(instance, field.name)
        # The class itself as factory adds nothing to its fields' own defaults, and fails where one of them is required.
        elif field.default_factory is not dataclasses.MISSING and field.default_factory is not hint:
            default = field.default_factory()
        if isinstance(default, str) and default == omegaconf.MISSING:
            default = dataclasses.MISSING
        key = _Key(name, hint, default, schema, field)
        yield key
        if key.is_group:
            yield from _walk(hint, name + ".", None if default is dataclasses.MISSING else default)
        else:
            _check_supported(hint, name)


def _alternatives(hint: typing.Any) -> tuple[list, bool]:
    """The types that `hint` is a union of, None apart, and whether None is one of them."""
    kinds = list(typing.get_args(hint)) if typing.get_origin(hint) in (Union, types.UnionType) else [hint]
    return [kind for kind in kinds if kind is not type(None)], type(None) in kinds


def _is_list(hint: typing.Any) -> bool:
    return any(typing.get_origin(kind) is list for kind in _alternatives(hint)[0])


def _is_bool(hint: typing.Any) -> bool:
    return bool in _alternatives(hint)[0]


def _check_supported(hint: typing.Any, name: str) -> None:
    kinds, _ = _alternatives(hint)
    for kind in kinds:
        if typing.get_origin(kind) is list:
            _check_supported(typing.get_args(kind)[0], name)
        elif kind not in _KINDS and typing.get_origin(kind) is not Literal:
            raise TypeError(f"field {name}: {hint} is not a type that a command line can give")
        # Text and lists take any value, so beside another type nobody could tell which one was meant.
        if len(kinds) > 1 and (kind in (str, Path) or typing.get_origin(kind) is list):
            raise TypeError(f"field {name}: {hint} is ambiguous; text and lists may only be joined with None")


def _build(schema: type[Config], keys: dict[str, _Key], values: dict[str, object], prefix: str = "") -> Config:
    if not prefix:
        absent = [k.name for k in keys.values() if not k.is_group and k.default is dataclasses.MISSING]
        absent = [name for name in absent if name not in values]
        if absent:
            raise UserError(f"missing {', '.join(absent)}: give {absent[0]}=VALUE or --{absent[0]} VALUE")
    arguments = {}
    for key in keys.values():
        if key.name != prefix + key.field.name:
            continue
        if key.is_group:
            arguments[key.field.name] = _build(key.hint, keys, values, key.name + ".")
        else:
            arguments[key.field.name] = values.get(key.name, key.default)
    try:
        return schema(**arguments)
    except ValueError as error:
        raise UserError(f"{prefix[:-1]}: {error}" if prefix else str(error)) from error


def _look_up(name: str, keys: dict[str, _Key], where: str = "") -> _Key:
    if name in keys:
        return keys[name]
    # The last part alone is a likelier slip than a misspelling: `lr` for `optim.lr`.
    close = [known for known in keys if known.rpartition(".")[2] == name] or difflib.get_close_matches(name, keys, n=1)
    hint = f"did you mean '{close[0]}'?" if close else "--help lists the keys"
    raise UserError(f"{where}unknown key '{name}'; {hint}")


def _group_error(key: _Key, keys: dict[str, _Key]) -> str:
    members = [name for name in keys if name.startswith(key.name + ".") and not keys[name].is_group]
    return f"'{key.name}' is a group of keys: set {', '.join(members)}"


# --- the command line -------------------------------------------------------------------------------------------------


def _split_arguments(argv: list[str], keys: dict[str, _Key]) -> tuple[list[str], dict[str, list[str]]]:
    """The YAML files, and the texts given for each key in the order given."""
    files: list[str] = []
    texts: dict[str, list[str]] = {}
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        is_option = token.startswith("--") and token != "--"
        name, sign, text = token.removeprefix("--").partition("=")
        if not is_option and token.endswith((".yaml", ".yml")) and not _ASSIGNMENT.match(token):
            if texts:
                raise UserError(f"'{token}' comes after a key: YAML files go before the keys")
            files.append(token)
            continue
        if not is_option and not sign:
            form = (
                f"{token}=VALUE or --{token} VALUE" if token in keys else "key=value, --key value, or a YAML file first"
            )
            raise UserError(f"unexpected argument '{token}': write {form}")
        key = _look_up(name, keys)
        if key.is_group:
            raise UserError(_group_error(key, keys))
        if sign:
            given = [text]
        else:
            given = []
            while rest and not rest[0].startswith("--") and not _ASSIGNMENT.match(rest[0]):
                given.append(rest.pop(0))
                if not _is_list(key.hint):
                    break
            if not given and _is_bool(key.hint):
                given = ["true"]
        if not given or (_is_list(key.hint) and "" in given):
            remedy = f"; if '{rest[0]}' is the value, write {name}={rest[0]}" if not given and rest else ""
            raise UserError(f"a value is missing after {token}{remedy}")
        texts.setdefault(name, []).extend(given)
    return files, texts


def _command_line_node(name: str, hint: typing.Any, given: list[str]) -> yaml.Node:
    """What was typed for a key, as the node that a YAML file would have given."""
    if not _is_list(hint):
        return _text_node(given[-1])
    if len(given) == 1 and not _in_brackets(given[0]):
        return _text_node(given[0])  # so that null can stand for the whole list
    nodes: list[yaml.Node] = []
    for text in given:
        if not _in_brackets(text):
            nodes.append(_text_node(text))
            continue
        try:
            sequence = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError:
            sequence = None
        if not isinstance(sequence, yaml.SequenceNode):
            raise UserError(f"{name}={text!r}: not a list such as [a,b]; put quotes around unusual elements")
        nodes.extend(sequence.value)
    return yaml.SequenceNode("tag:yaml.org,2002:seq", nodes)


def _in_brackets(text: str) -> bool:
    return text.startswith("[") and text.endswith("]")


def _text_node(text: str) -> yaml.ScalarNode:
    return yaml.ScalarNode("tag:yaml.org,2002:str", text)


# --- values -----------------------------------------------------------------------------------------------------------


def _convert(hint: typing.Any, node: yaml.Node, name: str) -> typing.Any:
    """The value that `node` writes for a field of type `hint`; `name` is the key, for the error."""
    kinds, optional = _alternatives(hint)
    if not node.tag.startswith("tag:yaml.org,2002:"):  # an unquoted [!a]: the text would be lost to the tag
        raise UserError(f"{name}: '{node.tag}' is a YAML tag here; put quotes around text that starts with '!'")
    is_null = isinstance(node, yaml.ScalarNode) and node.tag == _NULL_TAG
    word = node.value if isinstance(node, yaml.ScalarNode) and not is_null else None
    for kind in kinds:  # before null, because "none" may be a choice
        if typing.get_origin(kind) is Literal:
            for choice in typing.get_args(kind):
                if word is not None and word == _word(choice):
                    return choice
    # Someone who writes Python writes None; quotes (node.style) make it text again.
    if optional and (is_null or (word is not None and word.lower() in ("null", "none") and node.style is None)):
        return None
    for kind in kinds:
        if typing.get_origin(kind) is list and not is_null and not isinstance(node, yaml.MappingNode):
            (element,) = typing.get_args(kind)
            if word is not None:
                try:
                    return [_convert(element, node, name)]
                except UserError as error:  # 0,1 or 0-2 may have been meant as several
                    example = "[0,1,2]" if {int, float} & set(_alternatives(element)[0]) else "[a,b]"
                    raise UserError(f"{error}; write several as {name}={example}") from None
            return [_convert(element, child, f"{name}[{index}]") for index, child in enumerate(node.value)]
        if word is None:
            continue
        if kind in (str, Path):
            return kind(word)
        if kind is bool and word.lower() in _BOOLEANS:
            return _BOOLEANS[word.lower()]
        if kind in (int, float):
            try:
                # YAML writes .inf and .nan where Python reads inf and nan.
                return kind(re.sub(r"^([-+]?)\.(?=inf$|nan$)", r"\1", word.lower()))
            except ValueError:
                pass
    shown = "null" if is_null else repr(word) if word is not None else _NODE_NAMES[type(node)]
    raise UserError(f"{name}={shown}: {_expected(hint)}")


_NODE_NAMES = {yaml.SequenceNode: "(a list)", yaml.MappingNode: "(a mapping)"}


def _expected(hint: typing.Any) -> str:
    kinds, optional = _alternatives(hint)
    null = ["null"] if optional else []
    if all(typing.get_origin(kind) is Literal for kind in kinds):
        choices = [_word(choice) for kind in kinds for choice in typing.get_args(kind)]
        return "choose one of " + ", ".join(choices + null)
    names = []
    for kind in kinds:
        if typing.get_origin(kind) is list:
            names.append("a list such as [a,b]")
        elif typing.get_origin(kind) is Literal:
            names.extend(_word(choice) for choice in typing.get_args(kind))
        else:
            names.append(_KINDS[kind][1])
    return "expected " + " or ".join(names + null)


def _type_name(hint: typing.Any) -> str:
    kinds, optional = _alternatives(hint)
    names = []
    for kind in kinds:
        if typing.get_origin(kind) is list:
            element = _type_name(typing.get_args(kind)[0])
            names.append(f"list of ({element})" if " or " in element else f"list of {element}")
        elif typing.get_origin(kind) is Literal:
            names.append(", ".join(_word(choice) for choice in typing.get_args(kind)))
        else:
            names.append(_KINDS[kind][0])
    return " or ".join(names + ["null"] * optional)


def _word(value: object) -> str:
    """A value as one would type it on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(map(_word, value)) + "]"
    return str(value)


# --- YAML -------------------------------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Writes text that `_convert` reads back unchanged, and spells repeated lists out instead of using anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None
    if text.lower() == "none":  # PyYAML leaves it unquoted, since it is no null of YAML; here it is one
        style = "'"
    elif not text.isprintable():  # in single quotes PyYAML folds line breaks, and loses U+0085 to a blank
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _tree(value: typing.Any) -> object:
    if dataclasses.is_dataclass(value):
        return {field.name: _tree(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, list):
        return [_tree(element) for element in value]
    return str(value) if isinstance(value, (str, Path)) else value


def _read_yaml(path: str, keys: dict[str, _Key]) -> dict[str, object]:
    """The values that a YAML file gives, by dotted key."""
    try:
        # newline="": a carriage return is YAML's to interpret.
        with Path(path).open(encoding="utf-8", newline="") as file:
            text = file.read()
    except OSError as error:
        raise UserError(f"cannot read the configuration file '{path}': {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read the configuration file '{path}': it is not UTF-8 text") from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{path}{line}: not valid YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(f"{path}:{line}: not valid YAML: character U+{error.character:04X} is not allowed") from error
    if root is None:  # nothing but comments
        return {}
    values: dict[str, object] = {}
    _read_mapping(root, "", path, keys, values)
    return values


def _read_mapping(node: yaml.Node, prefix: str, path: str, keys: dict[str, _Key], values: dict[str, object]) -> None:
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"{path}:{node.start_mark.line + 1}: expected 'key: value' lines")
    for key_node, value_node in node.value:
        where = f"{path}:{key_node.start_mark.line + 1}: "
        if not isinstance(key_node, yaml.ScalarNode):
            raise UserError(f"{where}a key must be a name")
        key = _look_up(prefix + key_node.value, keys, where)
        if key.is_group:
            if isinstance(value_node, yaml.MappingNode):
                _read_mapping(value_node, key.name + ".", path, keys, values)
            elif value_node.tag != _NULL_TAG:  # a group whose lines are all commented out is null, and sets nothing
                raise UserError(where + _group_error(key, keys))
            continue
        if key.name in values:
            raise UserError(f"{where}'{key.name}' is given twice in this file")
        try:
            values[key.name] = _convert(key.hint, value_node, key.name)
        except UserError as error:
            raise UserError(f"{where}{error}") from None


# --- help -------------------------------------------------------------------------------------------------------------

_SYNTAX = "key=value, --key=value and --key value are the same. A list: key=[a,b] or --key a b. null: no value."
_FILES = "YAML files go before the keys; later ones win, and keys win over files."
_FOOTER = """\
-h, --help      print this and exit
--print-config  print the resolved configuration as YAML and exit"""


def _help(keys: dict[str, _Key], description: str, usage: str) -> str:
    parts = [f"usage: python {sys.argv[0]} {usage or '[FILE.yaml ...] [key=value ...]'}"]
    if description:
        parts.append("\n".join(_wrap(line, _WIDTH) for line in inspect.cleandoc(description).splitlines()))
    comments: dict[type, dict[str, str]] = {}
    rows = [("key", "type", "default", "meaning")]
    for key in keys.values():
        if key.owner not in comments:
            comments[key.owner] = _field_comments(key.owner)
        meaning = key.field.metadata.get("help") or comments[key.owner].get(key.field.name, "")
        if not key.is_group:
            rows.append((key.name, _type_name(key.hint), _shown_default(key.default), meaning))
        elif meaning:
            rows.append((key.name + ".", "", "", meaning))
    if len(rows) > 1:
        parts.append(_table(rows))
    footer = [_SYNTAX, _FOOTER] if usage else [_SYNTAX, _FILES, _FOOTER]
    return "\n\n".join([*parts, "\n".join(footer)])


def _wrap(line: str, width: int) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False) if len(line) > width else line


def _shown_default(default: object) -> str:
    if default is dataclasses.MISSING:
        return "(required)"
    word = _word(default)
    # Text that would not show, or would break the table, is shown as Python writes it.
    word = word if word.strip() == word != "" and word.isprintable() else repr(word)
    return word if len(word) <= 60 else word[:57] + "..."


def _table(rows: list[tuple[str, str, str, str]]) -> str:
    # Keys stay whole, to be copied; type and default wrap, and the meaning gets what is left of the line.
    widths = [max(len(row[0]) for row in rows)] + [min(20, max(len(row[i]) for row in rows)) for i in (1, 2)]
    widths.append(max(28, _WIDTH - sum(widths) - 2 * len(widths)))
    lines = []
    for row in rows:
        cells = [textwrap.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            lines.append("  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip())
    return "\n".join(lines)


def _field_comments(schema: type) -> dict[str, str]:
    """The comment that trails each field of a dataclass and its bases."""
    meanings: dict[str, str] = {}
    for base in reversed(schema.__mro__):
        if "__dataclass_fields__" not in vars(base):
            continue
        try:
            source = textwrap.dedent(inspect.getsource(base))
            body = ast.parse(source).body[0].body
        except (OSError, TypeError, SyntaxError):  # no source at hand, as in an interactive session
            continue
        comments = {
            token.start[0]: token
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        for statement in body:
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            found = [comments[i] for i in range(statement.lineno, statement.end_lineno + 1) if i in comments]
            # Marks for linters are not part of the meaning.
            words = [re.sub(r"#\s*(noqa|type:|pragma:|fmt:).*", "", token.string).strip("#: ") for token in found]
            meanings[statement.target.id] = " ".join(filter(None, words))
    return meanings


def _say(text: str, stream: typing.TextIO) -> None:
    """Print on rank 0 only: a launcher starts the same command line once per process."""
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
    if rank == "0":
        print(text, file=stream, flush=True)
