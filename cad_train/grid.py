"""The grid of a sweep: its points, the command line of every run, and its folder. No torch."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import re
import sys
import typing
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import yaml

from cad_train.config import NOT_RESUMED
from cad_train.run_folder import differing, flat
from decoding.commandline import UserError, from_yaml, parse_config

_RECIPES = Path(__file__).resolve().parent.parent / "recipes"


@dataclass(frozen=True)
class Recipe:
    """A training script and the dataclass of its settings."""

    path: Path
    schema: type

    @property
    def name(self) -> str:
        """What the run folders are called after."""
        return self.path.stem


@dataclass(frozen=True)
class Run:
    """One training run of a grid: a point, ``key=value,...``, with one seed."""

    point: str
    seed: int
    folder: Path
    arguments: list[str]  # of the recipe
    config: Any  # the recipe's settings, parsed from them

    @property
    def finished(self) -> bool:
        """Whether it has been trained to its end."""
        return (self.folder / "summary.json").is_file()


def load_recipe(word: str) -> Recipe:
    """Return the recipe that ``word`` names: a script of recipes/ by its name, or any by its path.

    Raises:
        UserError: there is no such script, or it is no training recipe.
    """
    path = _RECIPES / f"{word}.py" if re.fullmatch(r"\w+", word) else Path(word).expanduser()
    if not path.is_file():
        scripts = sorted(_RECIPES.glob("*.py"))
        names = [script.stem for script in scripts if "class Config(TrainConfig)" in script.read_text(encoding="utf-8")]
        raise UserError(f"recipe={word}: there is no {path}; name one of {', '.join(names)}, or give a path")
    spec = importlib.util.spec_from_file_location(f"swept_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up the types of their fields
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a script of the user's own may do
        raise UserError(f"recipe={word}: {path} cannot be loaded: {type(error).__name__}: {error}") from error
    schema = getattr(module, "Config", None)
    if not is_dataclass(schema) or None in (_key_type(schema, "seed"), _key_type(schema, "out")):
        raise UserError(f"recipe={word}: {path} is no training recipe: it has no dataclass Config with seed and out")
    return Recipe(path, schema)


def make_grid(recipe: Recipe, settings: list[str], seeds: list[int], out: Path) -> list[Run]:
    """Return the runs of a grid, all points with the first seed before any with the second.

    Nothing is run. Every command line is parsed as the recipe will parse it.

    Args:
        recipe: the script.
        settings: YAML files and ``key=value`` of the recipe. A list, ``key=[a,b]``, is an axis of the grid, one run for
            each value; for a key that is itself a list, ``key=[[a],[b,c]]`` is.
        seeds: the training seeds.
        out: the folder of the sweep; a run lies in ``out/key=value,.../seedS``.

    Raises:
        UserError: what the recipe would refuse on its command line, two points that are the same, or a folder that
            holds a run of other settings.
    """
    common, axes = _read_settings(settings, recipe.schema)
    data_keys = [key for key in axes if key.startswith("data.")]
    runs = []
    for seed in seeds:
        for values in itertools.product(*axes.values()):
            chosen = [f"{key}={value}" for key, value in zip(axes, values, strict=True)]
            point = ",".join(chosen) or recipe.name
            folder = out / _folder_name(point) / f"seed{seed}" if chosen else out / f"seed{seed}"
            arguments = [*common, *chosen, f"seed={seed}", f"out={folder}"]
            config = parse_config(recipe.schema, arguments)
            if data_keys and "data.out" not in axes:  # oracles of other settings are refused in one folder
                of_data = ",".join(text for key, text in zip(axes, chosen, strict=True) if key in data_keys)
                arguments = [text for text in arguments if not text.startswith("data.out=")]
                arguments.append(f"data.out={config.data.out}-{_folder_name(of_data)}")
                config = parse_config(recipe.schema, arguments)
            runs.append(Run(point, seed, folder, arguments, config))
    _check_different(runs)
    for run in runs:
        _check_folder(run)
    return runs


def _read_settings(settings: list[str], schema: type) -> tuple[list[str], dict[str, list[str]]]:
    """What every point has in common, as arguments, and the axes: a key's values as texts."""
    files: list[str] = []
    fixed: list[str] = []
    axes: dict[str, list[str]] = {}
    given: set[str] = set()
    for token in settings:
        name, sign, text = token.removeprefix("--").partition("=")
        if not sign and token.endswith((".yaml", ".yml")):
            files.append(token)
            continue
        if not sign:
            raise UserError(f"unexpected argument '{token}': write key=value, or a YAML file")
        if name == "seed":
            raise UserError(f"{token}: the seeds of a sweep are given as seeds=[0,1,2]")
        kind = _key_type(schema, name)
        if kind is None:
            parse_config(schema, [f"{name}={text}"])  # says what may have been meant
        is_list = any(typing.get_origin(part) is list for part in (kind, *typing.get_args(kind)))
        if name in given and not is_list:
            raise UserError(f"{name} is given twice: give it once, as {name}=[a,b] where both values are meant")
        given.add(name)
        values = _axis(name, text, is_list)
        if values is None:
            fixed.append(f"{name}={text}")
        elif name in axes:
            raise UserError(f"{name} is given twice as an axis of the grid: give all its values in one list")
        else:
            axes[name] = values
    if both := [name for name in axes if any(text.startswith(f"{name}=") for text in fixed)]:
        raise UserError(f"{both[0]} is given both as one value and as an axis of the grid")
    return [*files, *fixed], axes


def _key_type(schema: type, name: str) -> Any:
    """The type of a dotted key, None where there is no such key or it is a group of keys."""
    kind: Any = schema
    for part in name.split("."):
        if not is_dataclass(kind):
            return None
        kind = typing.get_type_hints(kind).get(part)
    return None if is_dataclass(kind) else kind


def _axis(name: str, text: str, is_list: bool) -> list[str] | None:
    """The values of an axis as they would be typed; None for one value."""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        node = None
    if not isinstance(node, yaml.SequenceNode):
        raise UserError(f"{name}={text!r}: not a list such as [a,b]; put quotes around unusual elements")
    nested = [isinstance(child, yaml.SequenceNode) for child in node.value]
    if is_list and not any(nested):
        return None
    good = all(nested) if is_list else all(isinstance(child, yaml.ScalarNode) for child in node.value)
    if not good or not node.value or not all(child.tag.startswith("tag:yaml.org,") for child in node.value):
        shape = "one list [a,b] or a list of lists [[a],[b,c]]" if is_list else "a list of values [a,b]"
        raise UserError(f"{name}={text!r}: an axis of the grid is {shape}; put quotes around unusual elements")
    if is_list:
        return [text[child.start_mark.index : child.end_mark.index] for child in node.value]
    return [child.value for child in node.value]


def _folder_name(point: str) -> str:
    """A name for the file system: the point itself where that may be one, else shortened, with a digest."""
    name = re.sub(r"[^\w.,=+-]+", "_", point)
    if name == point and len(name) <= 120:
        return name
    return f"{name[:100]}-{hashlib.sha256(point.encode()).hexdigest()[:8]}"


def _content(config: Any) -> dict[str, Any]:
    """The settings that make a run what it is."""
    return {key: value for key, value in flat(asdict(config)).items() if key not in NOT_RESUMED}


def _check_different(runs: list[Run]) -> None:
    seen: dict[str, Run] = {}
    for run in runs:
        other = seen.setdefault(json.dumps(_content(run.config), sort_keys=True, default=str), run)
        if other is not run:
            names = f"{other.point} and {run.point}" if other.point != run.point else f"seed {run.seed}, given twice,"
            raise UserError(f"{names} would be the same run, and count twice: leave one out")


def _check_folder(run: Run) -> None:
    """Refuse a folder with a run of other settings: finished, it would be taken for this one."""
    there = run.folder / "config.yaml"
    if not there.is_file():
        return
    changes = differing(_content(from_yaml(type(run.config), there)), _content(run.config))
    if changes:
        said = "; ".join(f"{key} was {was}, now {now}" for key, was, now in changes)
        raise UserError(f"{run.folder} holds another run ({said}): choose another out= or remove it")
