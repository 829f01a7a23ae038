"""Building oracles: every row is kept byte-exactly or counted by reason, splits never tear a group, builds repeat."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import build
from data_prep.build import OracleConfig, build_oracles, content_settings, prepare_corpora
from data_prep.corpora import source_stamps
from data_prep.counts import statistics
from data_prep.formatter_pairs import FormatterConfig
from data_prep.hub import HubConfig
from data_prep.humanevalpack import LANGUAGES, load_humanevalpack
from data_prep.hygiene import HygieneConfig
from data_prep.oracle import build_oracle
from data_prep.pairs import EditPair
from data_prep.prepared import OracleRow, fingerprint, read_manifest, read_split
from data_prep.probeedit import ProbeEditConfig
from data_prep.pyfix import PyFixConfig
from data_prep.rows import RowError, read_rows, read_rows_tolerant
from data_prep.split import choose_edits
from decoding.commandline import UserError
from decoding.grammar import parse, render
from decoding.resolver import resolve

ROOT = Path(__file__).resolve().parents[1]
DATA_DIR = os.environ.get("CAD_DATA_DIR")
needs_data = pytest.mark.skipif(not DATA_DIR, reason="set CAD_DATA_DIR to the folder of humanevalpack/ and commits/")
PRESENT = [s for s, name in LANGUAGES.items() if DATA_DIR and Path(DATA_DIR, "humanevalpack", f"{name}.jsonl").exists()]
COMMITS = sorted(Path(DATA_DIR, "commits").glob("*.jsonl")) if DATA_DIR else []


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run the command line as a person would, without a hub."""
    env = {key: value for key, value in os.environ.items() if key != "CAD_DATA_DIR"}
    line = [sys.executable, "data_prep/build_oracles.py", *arguments]
    env |= {"HF_HUB_OFFLINE": "1", **environment}
    return subprocess.run(line, cwd=ROOT, env=env, capture_output=True, encoding="utf-8")


def edit(instruction: str = "Edit.", before: str = "a\nb\n", after: str = "a\nc\n", **more) -> bytes:
    """Return one row of a jsonl corpus."""
    return json.dumps({"instruction": instruction, "before": before, "after": after, **more}).encode()


def write_jsonl(path: Path, rows: list[bytes]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\n".join(rows) + b"\n")
    return str(path)


def build_jsonl(tmp_path: Path, rows: list[bytes], **settings) -> tuple[dict, list[dict]]:
    """Build a jsonl corpus from rows; return its manifest entry and what was refused."""
    source = write_jsonl(tmp_path / "edits.jsonl", rows)
    config = OracleConfig(corpora=["jsonl"], jsonl=[source], out=str(tmp_path / "out"), **settings)
    entry = build_oracles(config)["corpora"]["jsonl"]
    return entry, list(read_rows(tmp_path / "out" / "rejected.jsonl"))


def built(out: Path | str, corpus: str) -> list[OracleRow]:
    return read_split(Path(out), [corpus], "train") + read_split(Path(out), [corpus], "heldout")


def groups(out: Path | str, corpus: str, split: str) -> set[str]:
    return {row.group for row in read_split(Path(out), [corpus], split)}


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def problem(number: int, prefix: str = "Python") -> bytes:
    """Return one row of HumanEvalPack, with the fields that the toolkit reads."""
    row = {
        "task_id": f"{prefix}/{number}",
        "entry_point": f"f{number}",
        "prompt": f"\ndef f{number}(x):\n",
        "buggy_solution": f"    y = x\n    return y - {number}\n",
        "canonical_solution": f"    y = x\n    return y + {number}\n",
        "test": f"\nassert f{number}(1)\n",
        "bug_type": "operator misuse",
    }
    return json.dumps(row).encode()


def humanevalpack(tmp_path: Path, python: list[int], js: list[int]) -> str:
    """Write a folder with these problems of the two languages."""
    write_jsonl(tmp_path / "data/humanevalpack/python.jsonl", [problem(number) for number in python])
    write_jsonl(tmp_path / "data/humanevalpack/js.jsonl", [problem(number, "JavaScript") for number in js])
    return str(tmp_path / "data")


# --- a build ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generated(tmp_path_factory) -> tuple[Path, str]:
    """Two generated corpora, built by the command line, and what it printed."""
    out = tmp_path_factory.mktemp("generated") / "out"
    sizes = ["probeedit.cases=30", "pyfix.cases=30", "pyfix.max_lines=12"]
    done = command("corpora=[probeedit,pyfix]", *sizes, "seed=3", f"out={out}", PYTHONHASHSEED="1")
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_the_command_line_builds_what_its_manifest_says(generated):
    out, printed = generated
    manifest = read_manifest(out)
    assert list(manifest["corpora"]) == ["probeedit", "pyfix"]
    for corpus, entry in manifest["corpora"].items():
        for split in ("train", "heldout"):
            rows = read_split(out, [corpus], split)
            assert len(rows) == entry[split] and {row.split for row in rows} == {split}
        assert (entry["offered"], entry["train"], entry["heldout"], entry["rejected"]) == (30, 24, 6, {})
        assert entry["statistics"] == statistics(built(out, corpus))
    assert (out / "rejected.jsonl").read_bytes() == b""
    assert f"wrote {out}, fingerprint {manifest['fingerprint'][:16]}" in printed


def test_every_written_program_is_canonical_and_resolves_to_its_gold(generated):
    out, _ = generated
    for row in built(out, "probeedit") + built(out, "pyfix"):
        assert resolve(parse(row.program), row.before) == row.after
        assert row.program == render(build_oracle(row.before, row.after)) == render(parse(row.program))


@pytest.mark.parametrize("corpus", ["probeedit", "pyfix"])
def test_no_group_is_in_two_splits(generated, corpus):
    out, _ = generated
    assert not groups(out, corpus, "train") & groups(out, corpus, "heldout")


def test_equal_settings_give_equal_bytes_in_any_process(generated, tmp_path):
    out, _ = generated
    config = OracleConfig(corpora=["probeedit", "pyfix"], seed=3, out=str(tmp_path / "again"))
    config.probeedit, config.pyfix = ProbeEditConfig(cases=30), PyFixConfig(cases=30, max_lines=12)
    build_oracles(config)
    assert files_of(tmp_path / "again") == files_of(out)


def test_another_seed_gives_another_fingerprint(tmp_path):
    manifests = [
        build_oracles(
            OracleConfig(
                corpora=["probeedit"], probeedit=ProbeEditConfig(cases=20), seed=seed, out=str(tmp_path / name)
            )
        )
        for seed, name in ((0, "a"), (0, "b"), (1, "c"))
    ]
    first, second, other = ((m["fingerprint"], m["corpora"]["probeedit"]["fingerprint"]) for m in manifests)
    assert first == second and first[0] != other[0] and first[1] != other[1]


def test_the_default_probeedit_corpus_has_the_papers_counts(tmp_path):
    entry = build_oracles(OracleConfig(corpora=["probeedit"], out=str(tmp_path)))["corpora"]["probeedit"]
    assert (entry["offered"], entry["train"], entry["heldout"], entry["rejected"]) == (154, 123, 31, {})
    rows = built(tmp_path, "probeedit")
    assert len(rows) == 154 and all(resolve(parse(row.program), row.before) == row.after for row in rows)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def many_edits(tmp_path_factory) -> Path:
    """500 edits with repeats, near ones, some of one path, and rows that are none, enough for several jobs."""
    path = tmp_path_factory.mktemp("many") / "edits.jsonl"
    documents = [" ".join(f"w{i}x{k}" for k in range(60)) + f" a {i}\nb\nc\n" for i in range(450)]
    texts = [documents[i % 450] if i < 480 else documents[i % 450].replace(f"a {i % 450}", "a") for i in range(500)]
    rows = [
        edit(before=text, after=text.replace("b", "B"), repo="r", path=f"{i % 400}") for i, text in enumerate(texts)
    ]
    write_jsonl(path, [*rows, b"no json"])
    return path


CLEAN = HygieneConfig(near_duplicates=True, drop_leaks=["same_path"])


def settings_of(path: Path, out: Path, **more) -> OracleConfig:
    return OracleConfig(corpora=["jsonl"], jsonl=[str(path)], out=str(out), equivalents=1, **more)


@pytest.mark.parametrize("hygiene", [HygieneConfig(), CLEAN], ids=["as it is", "clean"])
def test_a_build_that_stops_midway_leaves_the_earlier_folder_and_goes_on(tmp_path, many_edits, monkeypatch, hygiene):
    expected = build_oracles(settings_of(many_edits, tmp_path / "whole", hygiene=hygiene))
    out = tmp_path / "out"
    build_oracles(settings_of(many_edits, out, seed=1))
    earlier = contents(out)
    full_disk = OSError("no space left on device")
    searches = [("write_rows", 1), ("write_rows", 2)] if hygiene.refuses else []
    for where, which in [*searches, ("write_text", 3), ("_make", 1), ("_canonical", 1), ("_publish", 1)]:
        calls = itertools.count(1)
        real = getattr(build, where)

        def failing(*args, real=real, calls=calls, which=which, **kwargs):
            if next(calls) == which:
                raise full_disk
            return real(*args, **kwargs)

        with monkeypatch.context() as patched, pytest.raises(OSError, match="no space"):
            patched.setattr(build, where, failing)
            build_oracles(settings_of(many_edits, out, hygiene=hygiene))
        assert {name: data for name, data in contents(out).items() if not name.startswith(".building")} == earlier
    assert build_oracles(settings_of(many_edits, out, hygiene=hygiene)) == expected
    assert contents(out) == contents(tmp_path / "whole")


def test_a_build_killed_while_it_is_published_ends_whole(tmp_path, many_edits, monkeypatch):
    expected = build_oracles(settings_of(many_edits, tmp_path / "whole"))
    out = tmp_path / "out"
    for stop_at in range(1, 4):
        calls = itertools.count(1)
        for name in ("unlink", "replace"):  # the writes of the last steps
            real = getattr(Path, name)

            def failing(self, *args, real=real, calls=calls, stop_at=stop_at, **kwargs):
                if ".building" in str(self) and next(calls) == stop_at:
                    raise KeyboardInterrupt
                return real(self, *args, **kwargs)

            monkeypatch.setattr(Path, name, failing)
        with contextlib.suppress(KeyboardInterrupt):
            build_oracles(settings_of(many_edits, out))
        monkeypatch.undo()
    # As a kill during the last clean-up leaves it: all in its place, and the rest half removed.
    assert build_oracles(settings_of(many_edits, out)) == expected
    assert contents(out) == contents(tmp_path / "whole")
    (out / ".building" / "jsonl").mkdir(parents=True)
    (out / ".building" / "jsonl" / "made.json").write_text("{}")
    assert build_oracles(settings_of(many_edits, out)) == expected
    assert contents(out) == contents(tmp_path / "whole")


def test_a_file_that_changed_is_read_again(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "edits.jsonl", [edit(before="a\n"), edit(before="b\n")])
    config = OracleConfig(corpora=["jsonl"], jsonl=[source], out=str(tmp_path / "out"), heldout=0.0)
    monkeypatch.setattr(build, "_make_corpora", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        build_oracles(config)
    monkeypatch.undo()
    before = content_settings(config)
    write_jsonl(tmp_path / "edits.jsonl", [edit(before="c\n")])
    assert content_settings(config) != before
    build_oracles(config)
    assert [row.before for row in built(tmp_path / "out", "jsonl")] == ["c\n"]


def test_a_second_build_of_one_folder_is_refused(tmp_path):
    (tmp_path / "out" / ".building").mkdir(parents=True)
    config = OracleConfig(corpora=["probeedit"], probeedit=ProbeEditConfig(cases=5), out=str(tmp_path / "out"))
    with (tmp_path / "out" / ".building" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="is being built by another process"):
            build_oracles(config)
    build_oracles(config)


@pytest.mark.parametrize("seed", range(6))
def test_a_killed_build_goes_on_to_the_same_folder(tmp_path, many_edits, seed):
    words = [sys.executable, "data_prep/build_oracles.py", "corpora=[jsonl]", f"jsonl=[{many_edits}]", "equivalents=1"]
    hygiene = CLEAN if seed > 3 else HygieneConfig()
    if hygiene.refuses:
        words += ["hygiene.near_duplicates=true", "hygiene.drop_leaks=[same_path]"]
    build_oracles(settings_of(many_edits, tmp_path / "whole", hygiene=hygiene))
    out = tmp_path / "out"
    parts = ["jsonl/pairs.jsonl", "jsonl/made.json", "jsonl/pairs.jsonl", "jsonl/made.json"]
    state = out / ".building" / [*parts, "duplicates.jsonl", "leaks.jsonl"][seed]
    started = subprocess.Popen([*words, f"out={out}"], cwd=ROOT, stdout=subprocess.DEVNULL)
    while not state.exists() and started.poll() is None:
        time.sleep(0.001)
    time.sleep(0.002 * seed)
    started.kill()
    started.wait()
    done = subprocess.run([*words, f"out={out}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert contents(out) == contents(tmp_path / "whole")


def test_the_number_of_workers_and_the_size_of_their_jobs_change_no_byte(tmp_path, many_edits, monkeypatch):
    for workers in (1, 4):
        build_oracles(settings_of(many_edits, tmp_path / str(workers), workers=workers, hygiene=CLEAN))
    monkeypatch.setattr(build, "_BYTES_PER_JOB", 1)  # a job for each edit
    build_oracles(settings_of(many_edits, tmp_path / "small", workers=1, hygiene=CLEAN))
    assert contents(tmp_path / "1") == contents(tmp_path / "4") == contents(tmp_path / "small")


@pytest.mark.parametrize("hygiene", [HygieneConfig(), CLEAN], ids=["as it is", "clean"])
def test_the_rows_in_memory_are_those_on_disk(tmp_path, many_edits, hygiene):
    config = settings_of(many_edits, tmp_path / "out", limit=300, hygiene=hygiene)
    entry = build_oracles(config)["corpora"]["jsonl"]
    corpus = prepare_corpora(config)["jsonl"]
    for split in ("train", "heldout"):
        rows = [row for row in corpus.rows + corpus.equivalents if row.split == split]
        assert read_split(tmp_path / "out", ["jsonl"], split) == rows
    assert entry["fingerprint"] == fingerprint(corpus.rows + corpus.equivalents)
    assert (entry["offered"], entry["over_limit"]) == (corpus.offered, corpus.over_limit)
    assert entry["rejected"] == Counter(fault["reason"] for fault in corpus.faults)
    rejected = list(read_rows(tmp_path / "out" / "rejected.jsonl"))
    assert rejected == [{"corpus": "jsonl", **fault} for fault in corpus.faults]
    refused = sum(entry["rejected"].values())
    assert entry["offered"] == refused + entry["over_limit"] + entry["train"] + entry["heldout"] == 501


def test_a_clean_build_refuses_duplicates_before_the_limit_and_leaks_after_the_split(tmp_path, many_edits):
    as_it_is = build_oracles(settings_of(many_edits, tmp_path / "all", limit=460))["corpora"]["jsonl"]
    assert (as_it_is["rejected"], as_it_is["over_limit"]) == ({"duplicate": 30, "not_json": 1}, 10)
    clean = build_oracles(settings_of(many_edits, tmp_path / "clean", limit=440, hygiene=CLEAN))["corpora"]["jsonl"]
    leaks = clean["rejected"]["leak"]
    assert clean["rejected"] == {"duplicate": 30, "not_json": 1, "near_duplicate": 20, "leak": leaks}
    assert (clean["over_limit"], clean["heldout"], clean["train"]) == (10, 88, 440 - 88 - leaks)
    paths = {row.id: row.meta["path"] for row in built(tmp_path / "all", "jsonl")}
    held_out = {row.meta["path"] for row in read_split(tmp_path / "clean", ["jsonl"], "heldout")}
    trained = {row.meta["path"] for row in read_split(tmp_path / "clean", ["jsonl"], "train")}
    assert leaks > 0 and not trained & held_out
    for fault in read_rows(tmp_path / "clean" / "rejected.jsonl"):
        if fault["reason"] == "leak":
            assert fault["kinds"] == ["same_path"] and paths[fault["id"]] == paths[fault["held_out"]]
            assert (fault["file"], f":{fault['row']}") == (str(many_edits), fault["id"][fault["id"].rindex(":") :])


def test_a_person_reads_what_was_refused_and_made(tmp_path):
    text = "".join(f"line {i} of it\n" for i in range(30))
    rows = [
        edit(None, text, text.replace("9 of", "9 or")),
        edit("x", text + "end", text.replace("9 of", "9 or") + "end"),
    ]
    source = write_jsonl(tmp_path / "edits.jsonl", rows)
    words = ["synthesize_instructions=true", "hygiene.near_duplicates=true", "hygiene.drop_leaks=[same_gold]"]
    done = command("corpora=[jsonl]", f"jsonl=[{source}]", f"out={tmp_path / 'out'}", *words)
    assert done.returncode == 0, done.stderr
    assert "jsonl: 1 instructions made from the edit, 0 of them leave open what to write\n" in done.stdout
    assert (
        f"jsonl: refused 1 near_duplicate\nevery refused row is in {tmp_path / 'out'}/rejected.jsonl\n" in done.stdout
    )


def test_duplicates_and_leaks_are_found_across_corpora(tmp_path):
    data_dir = humanevalpack(tmp_path, list(range(10)), [])
    of_python = [(pair.before, pair.after) for pair in load_humanevalpack("py", Path(data_dir))]
    rows = [edit("Do it.", *of_python[0]), edit("Undo it.", *of_python[1][::-1]), edit(before="another\n")]
    source = write_jsonl(tmp_path / "edits.jsonl", rows)
    out, hygiene = tmp_path / "out", HygieneConfig(near_duplicates=True)
    both, data = {"corpora": ["hevalfix-py", "jsonl"], "jsonl": [source]}, {"data_dir": data_dir, "out": str(out)}
    build_oracles(OracleConfig(**both, **data, heldout=0.0, hygiene=hygiene))
    [fault] = read_rows(out / "rejected.jsonl")
    assert (fault["corpus"], fault["reason"], fault["row"], fault["kept"]) == ("jsonl", "duplicate", 1, "hevalfix-py/0")

    build_oracles(OracleConfig(corpora=["hevalfix-py"], **data, heldout=0.99))
    assert {row.id for row in read_split(out, ["hevalfix-py"], "heldout")} == {f"hevalfix-py/{i}" for i in range(10)}
    hygiene = HygieneConfig(drop_leaks=["same_gold", "same_document"], held_out=[str(out)])
    settings_of_other = {"out": str(tmp_path / "other"), "heldout": 0.0, "hygiene": hygiene}
    manifest = build_oracles(OracleConfig(corpora=["jsonl"], jsonl=[source], **settings_of_other))
    assert manifest["corpora"]["jsonl"]["rejected"] == {"leak": 2} and manifest["corpora"]["jsonl"]["train"] == 1
    faults = list(read_rows(tmp_path / "other" / "rejected.jsonl"))
    assert [fault["held_out"] for fault in faults] == ["hevalfix-py/0", "hevalfix-py/1"]


def test_hygiene_is_content_where_it_refuses_and_held_out_folders_are_by_what_they_hold(tmp_path):
    assert "hygiene" not in content_settings(OracleConfig())
    assert "hygiene" not in content_settings(OracleConfig(hygiene=HygieneConfig(threshold=0.5)))
    other = tmp_path / "other"
    hygiene = HygieneConfig(drop_leaks=["same_gold"], held_out=[str(other)])
    config = OracleConfig(corpora=["probeedit"], out=str(tmp_path / "out"), hygiene=hygiene)
    for use in (content_settings, build_oracles, prepare_corpora):
        with pytest.raises(UserError, match="other has no manifest.json: prepare it"):
            use(config)
    assert not (tmp_path / "out").exists()
    contents_of = []
    for seed in (0, 1, 0):
        fingerprint_of = build_oracles(OracleConfig(corpora=["probeedit"], seed=seed, out=str(other)))["fingerprint"]
        contents_of.append(content_settings(config))
        assert contents_of[-1]["hygiene"]["held_out"] == [fingerprint_of]
    assert contents_of[0] == contents_of[2] != contents_of[1]


def test_a_build_starts_anew_where_a_held_out_folder_has_changed(tmp_path, many_edits, monkeypatch):
    other, out = tmp_path / "other", tmp_path / "out"
    rows = list(read_rows_tolerant(many_edits))
    write_jsonl(tmp_path / "few.jsonl", [json.dumps(row).encode() for _, row, _ in rows[:40]])
    hygiene = HygieneConfig(drop_leaks=["same_document"], held_out=[str(other)])
    build_oracles(OracleConfig(corpora=["jsonl"], jsonl=[str(tmp_path / "few.jsonl")], out=str(other), heldout=0.5))
    config = settings_of(many_edits, out, hygiene=hygiene)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="no space"):
        patched.setattr(build, "_make", lambda *_, **__: (_ for _ in ()).throw(OSError("no space left")))
        build_oracles(config)
    few = settings_of(tmp_path / "few.jsonl", other, heldout=0.9)
    build_oracles(few)
    build_oracles(config)
    leaked = {row.before for row in read_split(other, ["jsonl"], "heldout")}
    assert not leaked & {row.before for row in read_split(out, ["jsonl"], "train")}


def test_statistics_count_operations_and_the_copied_share_of_gold_characters(tmp_path):
    rows = [edit(before="a\nb\nc\n", after="a\nX\nc\n"), edit(before="p\nq", after="p")]
    entry, _ = build_jsonl(tmp_path, rows, heldout=0.0)
    expected = {"pairs": 2, "copy_ops": 3, "gen_ops": 1, "gold_characters": 7, "copied_share": round(4 / 7, 4)}
    assert entry["statistics"] == expected


def test_a_limit_takes_so_many_pairs_by_seed(tmp_path):
    rows = [edit(before=f"{i}\n", after=f"{i}!\n") for i in range(20)]
    chosen = []
    for seed in (0, 0, 1):
        entry, _ = build_jsonl(tmp_path, rows, limit=5, seed=seed)
        assert (entry["offered"], entry["train"] + entry["heldout"], entry["heldout"]) == (20, 5, 1)
        chosen.append({row.before for row in built(tmp_path / "out", "jsonl")})
    assert chosen[0] == chosen[1] != chosen[2]


# --- a person's own rows ---------------------------------------------------------------------------------------------

# Good rows with everything that text handling likes to lose, in the order of the file.
CRLF = ("Set b.", "a\r\nb\r\n", "a\r\nB\r\n")
EMPTY = ("Start the file.", "", "x\n")
LONG = ("Change the last number.", "head\n" + "1," * 100_000, "head\n" + "1," * 99_999 + "2,")
ODD = ("Insert \0 and \u2028.", "\ufeffa\x0b\nb\x85\U0001f600\n", "\ufeffa\x0b\n\0\u2028\r\nb\x85\U0001f600\n")
TAGS = ("Write a </gen> tag.", "x <gen>\n</program>\n", "x <gen>\n</gen><\\/gen>\n</program>\n")
GONE = ("Delete everything.", "a\n\n", "")
GOOD = [CRLF, EMPTY, LONG, ODD, TAGS, GONE]

BAD = [
    ("not_json", b'{"instruction": oops}'),
    ("not_json", b'["instruction", "before", "after"]'),
    ("not_json", b'{"instruction": "\xff", "before": "a", "after": "b"}'),  # not UTF-8
    ("not_json", b"[" * 100_000),
    ("missing_field", b'{"instruction": "x", "before": "a"}'),
    ("missing_field", b"{}"),
    ("not_text", b'{"instruction": "x", "before": "a", "after": 3}'),
    ("not_text", b'{"instruction": null, "before": "a", "after": "b"}'),
    ("duplicate", edit(*CRLF)),
    ("no_op", edit(before="same\n", after="same\n")),
    ("lone_surrogate", b'{"instruction": "x", "before": "a", "after": "\\ud800"}'),
    ("lone_surrogate", b'{"instruction": "\\udfff", "before": "a", "after": "c"}'),
]


def mixed_rows() -> list[bytes]:
    """A file with a byte order mark, CRLF and blank lines, good and bad rows, and a last row that is cut off."""
    rows = [b"\xef\xbb\xbf" + edit(*CRLF) + b"\r", *(edit(*pair) for pair in GOOD[1:]), b"", b"  \r"]
    return [*rows, *(row for _, row in BAD), edit("Never finished.", "a", "b")[:-9]]


def test_bad_rows_are_counted_by_reason_and_listed(tmp_path):
    entry, rejected = build_jsonl(tmp_path, mixed_rows())
    expected = Counter(reason for reason, _ in BAD) + Counter({"not_json": 1})
    assert entry["rejected"] == expected
    assert entry["offered"] == len(GOOD) + len(BAD) + 1 == entry["train"] + entry["heldout"] + sum(expected.values())
    assert Counter(fault["reason"] for fault in rejected) == expected
    assert {fault["corpus"] for fault in rejected} == {"jsonl"}


def test_a_last_row_that_is_cut_off_is_refused_with_its_place(tmp_path):
    source = tmp_path / "edits.jsonl"
    source.write_bytes(edit() + b"\n" + edit(after="d\n")[:-5])
    config = OracleConfig(corpora=["jsonl"], jsonl=[str(source)], out=str(tmp_path / "out"), heldout=0.0)
    entry = build_oracles(config)["corpora"]["jsonl"]
    assert (entry["train"], entry["rejected"]) == (1, {"not_json": 1})
    (fault,) = read_rows(tmp_path / "out" / "rejected.jsonl")
    assert (fault["file"], fault["row"]) == (str(source), 2) and "column" in fault["detail"]


def test_every_refused_row_is_listed_with_its_file_and_row(tmp_path):
    rows = mixed_rows()
    _, rejected = build_jsonl(tmp_path, rows)
    first = len(GOOD) + 2 + 1  # 1-based, after the good rows and two blank ones
    expected = {(first + i, reason) for i, (reason, _) in enumerate(BAD)} | {(len(rows), "not_json")}
    assert {(fault["row"], fault["reason"]) for fault in rejected} == expected
    assert {fault["file"] for fault in rejected} == {str(tmp_path / "edits.jsonl")}


def test_good_rows_are_kept_byte_exactly(tmp_path):
    build_jsonl(tmp_path, mixed_rows())
    rows = sorted(built(tmp_path / "out", "jsonl"), key=lambda row: int(row.id.rsplit(":")[-1]))
    assert [(row.instruction, row.before, row.after) for row in rows] == GOOD
    assert all(resolve(parse(row.program), row.before) == row.after for row in rows)


def test_a_good_row_is_only_a_duplicate_where_all_three_texts_are_the_same(tmp_path):
    entry, _ = build_jsonl(tmp_path, [edit(), edit("Other."), edit(after="d\n"), edit(before="b\n"), edit()])
    assert (entry["train"] + entry["heldout"], entry["rejected"]) == (4, {"duplicate": 1})


def test_rows_that_differ_only_in_where_a_nul_stands_are_both_kept(tmp_path):
    entry, _ = build_jsonl(tmp_path, [edit("x\0y", "b", "a"), edit("x", "y\0b", "a")])
    assert (entry["train"] + entry["heldout"], entry["rejected"]) == (2, {})


def test_a_number_too_long_for_python_spoils_only_its_row(tmp_path):
    rows = [edit(), edit(after="d\n").replace(b"}", b', "size": ' + b"9" * 5000 + b"}"), edit(after="e\n")]
    entry, rejected = build_jsonl(tmp_path, rows)
    assert entry["train"] + entry["heldout"] + len(rejected) == 3 and entry["train"] + entry["heldout"] >= 2


def test_a_lone_surrogate_in_a_group_name_spoils_only_its_row(tmp_path):
    entry, rejected = build_jsonl(tmp_path, [edit(), edit(after="d\n", group="\ud800")])
    assert entry["train"] + entry["heldout"] + len(rejected) == 2 and entry["train"] + entry["heldout"] >= 1


def test_rows_of_two_files_with_one_name_have_ids_of_their_own(tmp_path):
    sources = [write_jsonl(tmp_path / name / "edits.jsonl", [edit(before=f"{name}\n")]) for name in ("p", "q")]
    build_oracles(OracleConfig(corpora=["jsonl"], jsonl=sources, out=str(tmp_path / "out")))
    assert len({row.id for row in built(tmp_path / "out", "jsonl")}) == 2


@pytest.mark.parametrize("seed", range(4))
def test_edits_of_one_document_or_one_named_group_stay_together(tmp_path, seed):
    rows = [edit(before=f"document {i % 6}\n", after=f"edit {i}\n") for i in range(18)]
    rows += [edit(before=f"other {i}\n", after="x\n", group=f"project {i % 3}") for i in range(12)]
    entry, _ = build_jsonl(tmp_path, rows, seed=seed)
    out = tmp_path / "out"
    train, heldout = groups(out, "jsonl", "train"), groups(out, "jsonl", "heldout")
    assert len(train | heldout) == 9 and not train & heldout
    documents = [{row.before for row in read_split(out, ["jsonl"], split)} for split in ("train", "heldout")]
    assert not documents[0] & documents[1]
    assert 4 <= entry["heldout"] <= 8  # a fifth of 30 is 6; groups have 3 or 4


@pytest.mark.parametrize("seed", range(5))
def test_the_held_out_share_is_one_of_the_edits_that_are_kept(tmp_path, seed):
    rows = [edit(before=f"{i}\n", after=f"{i}!\n") for i in range(5)]
    rows += [edit(before=f"same {i}\n", after=f"same {i}\n") for i in range(5)]
    entry, _ = build_jsonl(tmp_path, rows, seed=seed)
    assert (entry["train"], entry["heldout"]) == (4, 1)


def test_where_a_row_is_from_is_kept_and_rows_without_are_as_before(tmp_path):
    origin = {"repo": "a/b", "path": "src/x.py", "commit": "c0ffee", "license": "MIT", "language": "Python"}
    build_jsonl(tmp_path, [edit(**origin, stars=3, licence=None), edit(before="b\n")], heldout=0.0)
    file = str(tmp_path / "edits.jsonl")
    with_origin, without = built(tmp_path / "out", "jsonl")
    assert with_origin.meta == {"file": file, "row": 1, **origin} and without.meta == {"file": file, "row": 2}


in_corpora = st.tuples(st.sampled_from(["hevalfix-py", "hevalfix-js", "jsonl"]), st.integers(0, 9))


@given(st.lists(in_corpora), st.integers(1, 9))
@settings(deadline=None)
def test_whole_groups_are_held_out_as_near_as_they_come_to_the_share(edits, tenths):
    corpora = {name: [] for name in ("hevalfix-py", "hevalfix-js", "jsonl")}
    for name, group in edits:
        corpora[name].append(EditPair(str(len(corpora[name])), name, "", "a", "b", f"g{group}"))
    chosen = choose_edits(corpora, OracleConfig(heldout=tenths / 10))
    for family in (["hevalfix-py", "hevalfix-js"], ["jsonl"]):
        pairs = [pair for name in family for pair in corpora[name]]
        marks = [mark for name in family for mark in chosen[name].held_out]
        held_out = Counter(pair.group for pair, mark in zip(pairs, marks, strict=True) if mark)
        sizes, expected = Counter(pair.group for pair in pairs), Counter()
        for group in sorted(sizes, key=lambda group: group_score("split", family[0], group)):
            amiss = round(tenths / 10 * len(pairs)) - expected.total()
            if abs(amiss - sizes[group]) <= abs(amiss):
                expected[group] = sizes[group]
        assert held_out == expected


def group_score(purpose: str, name: str, group: str, seed: int = 0) -> str:
    """The order of groups that every folder prepared so far was split by."""
    family = "humaneval" if name.startswith("hevalfix") else name
    return hashlib.sha256(f"{purpose}:{seed}:{family}:{group}".encode()).hexdigest()


@given(st.lists(st.integers(0, 20)), st.integers(1, 12), st.integers(0, 3))
@settings(deadline=None)
def test_a_limit_keeps_the_first_by_score_in_order(groups_of, limit, seed):
    pairs = [EditPair(str(i), "jsonl", "", "a", "b", f"g{group}") for i, group in enumerate(groups_of)]
    chosen = choose_edits({"jsonl": pairs}, OracleConfig(limit=limit, seed=seed))["jsonl"]
    order = sorted(range(len(pairs)), key=lambda i: (group_score("limit", "jsonl", pairs[i].group, seed), i))
    assert chosen.places.tolist() == sorted(order[:limit]) and chosen.over_limit == max(0, len(pairs) - limit)


def test_one_group_is_trained_on_and_a_person_is_told_that_nothing_is_held_out(tmp_path):
    rows = [edit(before="the same\n", after=f"edit {i}\n") for i in range(10)]
    done = command("corpora=[jsonl]", f"jsonl=[{write_jsonl(tmp_path / 'e.jsonl', rows)}]", f"out={tmp_path / 'out'}")
    assert done.returncode == 0 and "jsonl: no edit is held out" in done.stdout
    assert len(read_split(tmp_path / "out", ["jsonl"], "train")) == 10


def test_where_nothing_is_usable_nothing_is_written_and_what_was_there_stays(tmp_path):
    build_jsonl(tmp_path, [edit()], heldout=0.0)
    before = contents(tmp_path / "out")
    with pytest.raises(
        UserError, match=r"every edit is refused, 2 missing_field, 1 not_json; the first is .*, row 1: "
    ):
        build_jsonl(tmp_path, [b"{}", b"{", b'{"before": ""}'])
    assert contents(tmp_path / "out") == before
    with pytest.raises(UserError, match="nothing to prepare: there are no edits in jsonl"):
        build_oracles(
            OracleConfig(corpora=["jsonl"], jsonl=[write_jsonl(tmp_path / "e", [])], out=str(tmp_path / "no"))
        )
    assert not (tmp_path / "no").exists()


def test_a_build_that_was_stopped_starts_anew_where_its_sources_have_changed(tmp_path, monkeypatch):
    source, out = tmp_path / "layout", tmp_path / "out"
    source.mkdir()
    (source / "a.py").write_text("one \n")
    formatter = FormatterConfig(
        source=[str(source)], command="trailing-whitespace", unit="file", min_lines=1, cases=None
    )
    config = OracleConfig(corpora=["formatter"], formatter=formatter, out=str(out), heldout=0.0)
    with monkeypatch.context() as patch:
        patch.setattr(build, "_make_corpora", lambda *_: sys.exit("killed"))
        with pytest.raises(SystemExit):
            build_oracles(config)
    (source / "a.py").write_text("two  \n")
    build_oracles(config)
    assert [row.before for row in built(out, "formatter")] == ["two  \n"]


@pytest.mark.parametrize("way", ["home", "subfolders", "in a folder", "package"])
def test_a_change_of_what_is_read_shows_however_it_is_named(tmp_path, monkeypatch, way):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "edits/deep/er").mkdir(parents=True)
    file = tmp_path / ("edits/a.py" if way == "package" else "edits/deep/er/e.jsonl")
    hub = {
        "home": HubConfig(data_files=["~/edits/deep/er/*.jsonl"]),
        "subfolders": HubConfig(data_files=[f"{tmp_path}/edits/**/*.jsonl"]),
        "in a folder": HubConfig(path="someone/edits", data_files=[f"{tmp_path}/edits/**/*.jsonl"]),
    }
    if way == "package":
        config = OracleConfig(corpora=["pyfix"], pyfix=PyFixConfig(source="edits"))
    else:
        config = OracleConfig(corpora=["hub"], hub=hub[way])
    seen = []
    for moment in (1, 1, 2):
        file.write_text("{}")
        os.utime(file, (moment, moment))
        seen.append(source_stamps(config))
    assert seen[0] == seen[1] != seen[2]


def test_a_package_that_is_not_there_is_one_error(tmp_path):
    config = OracleConfig(corpora=["pyfix"], pyfix=PyFixConfig(source="no_such_package"), out=str(tmp_path / "out"))
    with pytest.raises(UserError, match="this Python finds no such package"):
        build_oracles(config)
    assert not (tmp_path / "out").exists()


# --- what a person gets wrong ----------------------------------------------------------------------------------------


def test_mistakes_are_one_line_and_exit_code_2(tmp_path):
    cut_off = tmp_path / "data" / "humanevalpack" / "python.jsonl"
    write_jsonl(cut_off, [problem(0), problem(1)[:-40]])
    cases = [
        (["corpora=[jsonl]", "jsonl=[nowhere/edits.jsonl]"], "nowhere/edits.jsonl"),
        (["corpora=[jsonl]", f"jsonl=[{tmp_path}]"], str(tmp_path)),  # a folder
        (["corpora=[probedit]"], "probedit"),
        (["corpora=[hevalfix-py]", f"data_dir={tmp_path / 'data'}"], f"{cut_off}, row 2"),
        (["corpora=[hevalfix-py]", f"data_dir={tmp_path / 'nowhere'}"], "data_dir"),
    ]
    for arguments, named in cases:
        done = command(*arguments, f"out={tmp_path / 'out'}")
        assert done.returncode == 2, done
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and named in done.stderr
    assert read_manifest(tmp_path / "out") is None


def test_an_output_folder_that_is_a_file_is_a_mistake_of_the_person(tmp_path):
    (tmp_path / "out").write_bytes(b"")
    config = OracleConfig(corpora=["probeedit"], probeedit=ProbeEditConfig(cases=2), out=str(tmp_path / "out"))
    with pytest.raises(UserError, match="out"):
        build_oracles(config)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not have file names that are not text")
def test_a_file_name_that_is_not_utf8_can_be_built_from(tmp_path):
    source = write_jsonl(tmp_path / os.fsdecode(b"caf\xe9.jsonl"), [edit(), b"{}"])
    entry = build_oracles(OracleConfig(corpora=["jsonl"], jsonl=[source], out=str(tmp_path / "out")))["corpora"][
        "jsonl"
    ]
    assert (entry["train"] + entry["heldout"], entry["rejected"]) == (1, {"missing_field": 1})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"corpora": ["probeedit", "nope", "hevalfix-c"]}, "nope, hevalfix-c"),
        ({"corpora": []}, "at least one"),
        ({"corpora": ["pyfix", "pyfix"]}, "each once"),
        ({"corpora": ["jsonl"]}, "jsonl="),
        ({"heldout": 1.0}, "heldout"),
        ({"heldout": -0.1}, "heldout"),
        ({"limit": 0}, "limit"),
        ({"out": "a/b", "hygiene": HygieneConfig(drop_leaks=["same_gold"], held_out=["./a/b"])}, "folder to write"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(settings, named):
    with pytest.raises(ValueError, match=named):
        OracleConfig(**settings)


def test_a_generator_that_cannot_make_so_many_is_a_mistake_of_the_person(tmp_path):
    config = OracleConfig(corpora=["probeedit"], probeedit=ProbeEditConfig(cases=0), out=str(tmp_path))
    with pytest.raises(UserError, match="cases=0"):
        build_oracles(config)


def test_a_folder_that_is_not_whole_is_refused_by_name(tmp_path):
    assert read_manifest(tmp_path) is None
    build_jsonl(tmp_path, [edit()], heldout=0.0)
    out = tmp_path / "out"
    with pytest.raises(UserError, match="pyfix"):
        read_split(out, ["pyfix"], "train")
    train = out / "jsonl" / "train.jsonl"
    train.write_bytes(train.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"train\.jsonl is not as it was prepared"):
        read_split(out, ["jsonl"], "train")
    manifest = out / "manifest.json"
    entries = json.loads(manifest.read_text(encoding="utf-8"))
    del entries["corpora"]["jsonl"]["sha256"]  # as earlier versions wrote it
    manifest.write_text(json.dumps(entries), encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.jsonl.*row 1"):
        read_split(out, ["jsonl"], "train")
    train.write_text('{"id": "x"}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.jsonl"):
        read_split(out, ["jsonl"], "train")
    manifest.write_text(manifest.read_text(encoding="utf-8").replace('"format": 1', '"format": 99'), encoding="utf-8")
    with pytest.raises(UserError, match="format 99"):
        read_manifest(out)
    manifest.write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="damaged"):
        read_manifest(out)


# --- HumanEvalPack ---------------------------------------------------------------------------------------------------


def heldout_leaks(tmp_path: Path, data_dir: str, **settings) -> set[str]:
    """Build both languages; return the problems that train in one and are held out in the other."""
    out = tmp_path / "out"
    build_oracles(OracleConfig(corpora=["hevalfix-py", "hevalfix-js"], data_dir=data_dir, out=str(out), **settings))
    train = {group for corpus in ("hevalfix-py", "hevalfix-js") for group in groups(out, corpus, "train")}
    return train & {group for corpus in ("hevalfix-py", "hevalfix-js") for group in groups(out, corpus, "heldout")}


def test_a_problem_becomes_an_edit_of_its_body(tmp_path):
    data_dir = humanevalpack(tmp_path, [0, 1, 2], [0])
    first, *_ = pairs = load_humanevalpack("py", Path(data_dir))
    assert len(pairs) == 3 and first.id == "hevalfix-py/0" and first.group == "humaneval/0"
    assert first.instruction == "Fix bugs in f0.\n\ndef f0(x):"
    assert (first.before, first.after) == ("    y = x\n    return y - 0\n", "    y = x\n    return y + 0\n")
    assert first.meta == {"task_id": "Python/0", "bug_type": "operator misuse"}
    with_tests = load_humanevalpack("py", Path(data_dir), tests_in_prompt=True)
    assert with_tests[0].instruction.endswith("\n\nTests:\nassert f0(1)")


def test_a_problem_without_a_field_is_refused_by_file_row_and_field(tmp_path):
    data_dir = Path(humanevalpack(tmp_path, [0, 1], []))
    path = data_dir / "humanevalpack" / "python.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"entry_point": "f1"', b'"entry": "f1"'))
    with pytest.raises(RowError, match=r"python\.jsonl, row 2: .*entry_point"):
        load_humanevalpack("py", data_dir)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_problems_are_held_out_in_every_language(tmp_path, seed):
    for count, expected in ((3, 1), (10, 2)):
        data_dir = humanevalpack(tmp_path, list(range(count)), list(range(count)))
        assert heldout_leaks(tmp_path, data_dir, seed=seed) == set()
        heldout = [groups(tmp_path / "out", corpus, "heldout") for corpus in ("hevalfix-py", "hevalfix-js")]
        assert heldout[0] == heldout[1] and len(heldout[0]) == expected


def test_the_same_problems_are_held_out_when_the_languages_are_built_apart(tmp_path):
    data_dir = humanevalpack(tmp_path, list(range(10)), list(range(10)))
    for corpus in ("hevalfix-py", "hevalfix-js"):
        build_oracles(OracleConfig(corpora=[corpus], data_dir=data_dir, out=str(tmp_path / corpus)))
    py, js = (groups(tmp_path / corpus, corpus, "heldout") for corpus in ("hevalfix-py", "hevalfix-js"))
    assert py == js


@pytest.mark.parametrize("seed", range(4))
def test_no_problem_trains_in_one_language_and_is_held_out_in_another_that_lacks_some(tmp_path, seed):
    data_dir = humanevalpack(tmp_path, list(range(20)), list(range(1, 20)))
    assert heldout_leaks(tmp_path, data_dir, seed=seed) == set()


@pytest.mark.parametrize("seed", range(4))
def test_no_problem_trains_in_one_language_and_is_held_out_in_another_under_a_limit(tmp_path, seed):
    data_dir = humanevalpack(tmp_path, list(range(20)), list(range(20)))
    assert heldout_leaks(tmp_path, data_dir, seed=seed, limit=12) == set()


# --- the real data ---------------------------------------------------------------------------------------------------


@needs_data
@pytest.mark.parametrize("short", PRESENT)
def test_all_164_fixes_of_a_language_round_trip(tmp_path, short):
    name = f"hevalfix-{short}"
    entry = build_oracles(OracleConfig(corpora=[name], data_dir=DATA_DIR, out=str(tmp_path)))["corpora"][name]
    assert (entry["offered"], entry["train"], entry["heldout"], entry["rejected"]) == (164, 131, 33, {})
    rows = built(tmp_path, name)
    assert len(rows) == 164 and all(resolve(parse(row.program), row.before) == row.after for row in rows)
    copies = {"py": 295, "js": 311}  # K of the paper's Table 2
    assert entry["statistics"]["copy_ops"] == copies.get(short, entry["statistics"]["copy_ops"])


@needs_data
@pytest.mark.parametrize("path", COMMITS, ids=lambda path: path.stem)
def test_every_edit_of_real_commits_round_trips(path):
    count = 0
    for row in read_rows(path):
        program = build_oracle(row["before"], row["after"])
        assert resolve(parse(render(program)), row["before"]) == row["after"], row["commit"]
        count += 1
    assert count > 0
