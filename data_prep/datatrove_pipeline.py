"""Prepare oracles with datatrove, in parallel and across machines: JSON Lines in, a prepared folder out.

    pip install 'cad-train[datatrove]'
    python data_prep/datatrove_pipeline.py input=edits out=data/big tasks=64 workers=8
    accelerate launch recipes/sft_combined.py data.corpora=[datatrove] data.out=data/big

input= is a folder, or any address of one that fsspec opens (s3://..., hf://datasets/...). Its files *.jsonl and
*.jsonl.gz are read, in subfolders too, with the columns that data_prep/hub.py knows or that are named here. Every task
takes whole files. When the same command is given again, a run that was stopped goes on with the tasks that datatrove
has not marked as complete.

The folder does not depend on tasks= and workers=. Two things differ from data_prep/build_oracles.py, because no task
sees the rows of another: a group is held out if its hash falls below the share heldout=, so that the share is met on
average and not exactly; and rows are ordered by the hash of their edit, which also shows duplicates: of copies of an
edit the one whose file and row come first is kept, the others are listed as refused.

OUT/parts/KEY has the rows of every task and datatrove's logs, statistics and completion markers; KEY stands for
settings, tasks and input files (names, sizes, times or checksums), so that another command never mixes in. It may be
removed when the folder is there. Collecting holds a sixteenth of the rows in memory.

On Slurm (datatrove submits both jobs; OUT on storage that the nodes share, cad-train installed on them):

    from datatrove.executor import SlurmPipelineExecutor
    from data_prep.datatrove_pipeline import Config, oracle_pipeline, work_folder
    from data_prep.datatrove_steps import CollectStep

    config = Config(input="/shared/edits", out="/shared/oracles", tasks=500)
    work = work_folder(config)
    place = {"partition": "cpu", "venv_path": "/shared/venv/bin/activate"}
    rows = SlurmPipelineExecutor(
        oracle_pipeline(config, work), tasks=500, time="08:00:00", logging_dir=str(work / "logs"), **place
    )
    SlurmPipelineExecutor(
        [CollectStep(config, work)], tasks=1, time="08:00:00", mem_per_cpu_gb=16, logging_dir=str(work / "collect"),
        depends=rows, **place
    ).run()

On Ray, from a machine of the cluster (pip install 'datatrove[ray]'), with config and work as above:

    import ray
    from datatrove.executor import RayPipelineExecutor
    from data_prep.datatrove_pipeline import collect

    ray.init(address="auto")
    RayPipelineExecutor(oracle_pipeline(config, work), tasks=500, logging_dir=str(work / "logs")).run()
    collect(config, work)
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.build import OracleConfig, content_settings, refusals
from data_prep.build_oracles import summarise
from data_prep.counts import statistics
from data_prep.hub import Columns, check_columns
from data_prep.prepared import FORMAT_VERSION, OracleRow, fingerprint, read_manifest
from data_prep.programs import Choice
from data_prep.rows import read_rows, write_text
from decoding.commandline import UserError, run
from decoding.loading import file_digest

if TYPE_CHECKING:
    from datatrove.pipeline.base import PipelineStep

CORPUS = "datatrove"
PATTERN = "**/*.jsonl*"  # of input files
_DUPLICATE = "the same instruction, before, and after stand in {file}, row {row}"


@dataclass
class Config(Columns):
    """What to prepare, and in how many tasks. Seed, split and programs are those of build_oracles.py."""

    input: str | None = None  # folder of JSON Lines files, or its fsspec address
    out: str = "data/datatrove"  # the folder to write
    tasks: int = 4  # parts of the work; each takes whole files
    workers: int = 2  # tasks at the same time, on this machine
    seed: int = 0  # of the split and of additional programs
    heldout: float = 0.2  # share of groups that is held out, on average
    program: Choice = "difflib"  # of training edits: which of the programs that make the edit; see data_prep.programs
    min_copy: int = 1  # of training edits: copies of fewer lines are written out
    merge_text_free: bool = False  # likewise copies without a letter or digit (blank lines, brackets)
    equivalents: int = 0  # up to so many training rows more an edit, with other programs for it

    def __post_init__(self) -> None:
        self.settings()  # says what is wrong with them
        for key in ("tasks", "workers"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}={getattr(self, key)}: must be at least 1")

    def settings(self) -> OracleConfig:
        """The settings of build_oracles.py that determine rows and split."""
        shared = ("seed", "heldout", "program", "min_copy", "merge_text_free", "equivalents")
        return OracleConfig(corpora=[CORPUS], **{key: getattr(self, key) for key in shared})

    def columns(self) -> Columns:
        """The columns of an edit."""
        return Columns(self.instruction, self.before, self.after, self.group)


def main(config: Config) -> None:
    """Run the tasks on this machine, collect, and say what was built."""
    if config.input is None:
        raise UserError("input: name the folder of JSON Lines files, input=FOLDER")
    _check_out(config)
    try:
        from datatrove.executor import LocalPipelineExecutor

        work = work_folder(config)
        steps = oracle_pipeline(config, work)
    except ImportError as error:
        raise UserError(f"{error}; install it with: pip install 'cad-train[datatrove]'") from None
    try:
        LocalPipelineExecutor(steps, tasks=config.tasks, workers=config.workers, logging_dir=str(work / "logs")).run()
    except Exception as error:  # of a task; datatrove has logged its traceback
        raise UserError(
            f"a task failed ({type(error).__name__}: {error}); its log is in {work / 'logs' / 'logs'}; "
            "the same command goes on with the tasks that are left"
        ) from error
    print(summarise(collect(config, work), config.out))


def work_folder(config: Config) -> Path:
    """Return OUT/parts/KEY; KEY is a hash of settings, columns, tasks, and input files as they stand.

    Raises:
        UserError: an input that cannot be listed, or without such files.
    """
    from datatrove.io import get_datafolder

    try:
        folder = get_datafolder(config.input)
        files = {name: _state(folder.info(name)) for name in folder.list_files(glob_pattern=PATTERN)}
    except Exception as error:  # whatever the file system of the address raises
        raise UserError(f"input={config.input}: cannot list the files ({type(error).__name__}: {error})") from None
    if not files:
        raise UserError(f"input={config.input}: there are no files {PATTERN}")
    about = {key: value for key, value in asdict(config).items() if key not in ("out", "workers")}
    key = hashlib.sha256(json.dumps([about, files]).encode()).hexdigest()[:12]
    return Path(config.out) / "parts" / key


def _state(info: dict[str, Any]) -> list:
    """Return what of a file changes with its content: size, time of a local one, checksum of one on S3 or the hub."""
    return [info.get(key) for key in ("size", "mtime", "ETag", "blob_id")]


def oracle_pipeline(config: Config, work: Path) -> list[PipelineStep]:
    """Return the steps of a task: read edits, make rows, write them to ``work``. Needs datatrove.

    Raises:
        UserError: columns are named, and the first row lacks one.
    """
    from data_prep.datatrove_steps import EditReader, OracleStep, first_row, writer

    columns = config.columns()
    if columns != Columns() and (row := first_row(config.input, PATTERN)):
        check_columns(row, columns, f"input={config.input}")
    step = OracleStep(config.settings(), columns, writer(work / "rejected"))
    return [EditReader(config.input, glob_pattern=PATTERN), step, writer(work / "rows")]


def collect(config: Config, work: Path) -> dict[str, Any]:
    """Turn what all tasks wrote to ``work`` into the prepared folder ``config.out``, and return its manifest.

    Raises:
        UserError: a task that is not complete, a folder that holds other corpora, or no edit at all; what the folder
            holds then stays.
    """
    _check_out(config)
    undone = [rank for rank in range(config.tasks) if not (work / "logs" / "completions" / f"{rank:05d}").exists()]
    if undone:
        raise UserError(
            f"{len(undone)} of {config.tasks} tasks are not complete, the first is {undone[0]}: run them again, with "
            f"the same tasks=; their logs are in {work / 'logs' / 'logs'}"
        )
    out = Path(config.out)
    paths = [out / CORPUS / "train.jsonl", out / CORPUS / "heldout.jsonl", out / "rejected.jsonl"]
    parts = [work / path.name for path in paths]  # what the folder holds stays until all of them are whole
    rejected, tags, counts = Counter(), Counter(), Counter()
    train, heldout, refused = (part.open("w", encoding="utf-8", newline="") for part in parts)
    with train, heldout, refused:
        for bucket in "0123456789abcdef":
            rows, faults = _once(_read(work / "rows" / bucket))
            for row in rows:
                counts["equivalents" if "#" in row["id"] else row["split"]] += 1
                tags.update([] if "#" in row["id"] else row["tags"])
                _write(train if row["split"] == "train" else heldout, row)
            faults += sorted(_read(work / "rejected" / bucket), key=_place)
            for fault in faults:
                rejected[fault["reason"]] += 1
                _write(refused, {"corpus": CORPUS, **fault})

    def written(*, equivalents: bool) -> Iterator[OracleRow]:
        rows = (OracleRow(**row) for part in parts[:2] for row in read_rows(part))
        return (row for row in rows if equivalents or "#" not in row.id)

    entry = {
        "offered": counts["train"] + counts["heldout"] + rejected.total(),
        "rejected": dict(sorted(rejected.items())),
        "over_limit": 0,
        "train": counts["train"],
        "heldout": counts["heldout"],
        "equivalents": counts["equivalents"],
        "tags": dict(sorted(tags.items())),
        "statistics": statistics(written(equivalents=False)),
        "fingerprint": fingerprint(written(equivalents=True)),
        "sha256": {split: file_digest(part) for split, part in zip(("train", "heldout"), parts[:2], strict=True)},
        "input": config.input,
    }
    if not counts["train"] + counts["heldout"]:
        raise UserError(refusals({"corpora": {config.input: entry}}, next(read_rows(parts[2]), None)))
    manifest = {
        "format": FORMAT_VERSION,
        "settings": content_settings(config.settings()),
        "corpora": {CORPUS: entry},
        "fingerprint": hashlib.sha256(json.dumps([entry["fingerprint"]]).encode()).hexdigest(),
    }
    (out / "manifest.json").unlink(missing_ok=True)  # from here on the folder is unfinished
    (out / CORPUS).mkdir(parents=True, exist_ok=True)
    for part, path in zip(parts, paths, strict=True):
        part.replace(path)
    write_text(out / "manifest.json", json.dumps(manifest, indent=2) + "\n")
    return manifest


def _check_out(config: Config) -> None:
    out = Path(config.out)
    if out.exists() and not out.is_dir():
        raise UserError(f"out={config.out} is a file: name a folder")
    others = (read_manifest(out) or {"corpora": {}})["corpora"].keys() - {CORPUS}
    if others:
        raise UserError(f"out={config.out} holds {', '.join(sorted(others))}, prepared before: choose another folder")


def _read(folder: Path) -> Iterator[dict]:
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rb") as file:
            yield from map(json.loads, file)


def _once(rows: Iterator[dict]) -> tuple[list[dict], list[dict]]:
    """Return the rows by id, one of every id, and the others as faults. Additional rows of an edit are no faults."""
    kept: list[dict] = []
    faults: list[dict] = []
    for row in sorted(rows, key=lambda row: (row["id"], *_place(row["meta"]))):
        if not kept or kept[-1]["id"] != row["id"]:
            kept.append(row)
        elif "#" not in row["id"]:
            first, place = kept[-1]["meta"], {key: row["meta"][key] for key in ("file", "row")}
            faults.append(place | {"reason": "duplicate", "detail": _DUPLICATE.format(**first)})
    return kept, faults


def _place(entry: dict) -> tuple[str, int]:
    return entry["file"], entry["row"] or 0


def _write(file: Any, row: dict) -> None:
    file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    run(main, Config, description=__doc__)
