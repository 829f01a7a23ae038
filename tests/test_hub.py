"""The hub corpus: columns found or named, texts byte for byte, every row used or counted, refusals that say why."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote

import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.build import OracleConfig, build_oracles, content_settings
from data_prep.hub import FIELDS, Columns, HubConfig, load_hub, read_edit
from data_prep.pairs import EditPair
from data_prep.prepared import read_split
from data_prep.rows import read_rows
from decoding.commandline import UserError
from decoding.grammar import parse
from decoding.resolver import resolve

ROOT = Path(__file__).resolve().parents[1]
TEXTS = [  # what readers of tables like to change
    ("Change\r\nit.", "a\r\nb\r\n", "a\r\nc\r\n"),
    ("NA", "null\nNaN\n", "None"),
    (" Nest it. ", "\ufeffx = 1", '\u2028"x",\t1\x0c\n\n'),
    ("1", "2", "3.0\n"),
]


def commit(number: int = 0, **changes) -> dict:
    """Return one row with the columns of CommitPackFT."""
    row = {
        "commit": f"{number:040x}",
        "old_file": "src/a.py",
        "new_file": "src/a.py",
        "old_contents": f"x = {number}\ny = 1\n",
        "new_contents": f"x = {number}\ny = 2\n",
        "subject": f"Set y, {number}",
        "message": f"Set y, {number}\n\nIt was 1.",
        "lang": "Python",
        "license": "mit",
        "repos": f"owner/r{number % 3},fork/r{number % 3}",
    }
    return row | changes


def write(path: Path, rows: list[dict]) -> str:
    """Write rows in the format that the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if path.name.endswith(".jsonl.gz"):
        path.write_bytes(gzip.compress(lines))
    elif path.suffix == ".jsonl":
        path.write_bytes(lines)
    elif path.suffix == ".parquet":
        Dataset.from_list(rows).to_parquet(str(path))
    elif path.suffix == ".csv":
        Dataset.from_list(rows).to_csv(str(path), index=False)
    elif path.suffix == ".arrow":
        Dataset.from_list(rows).save_to_disk(str(path.parent))
    return str(path)


def load(**settings) -> tuple[list[EditPair], list[dict]]:
    """Load and share out into edits and rows that are none."""
    items = list(load_hub(HubConfig(**settings)))
    pairs = [item for item in items if isinstance(item, EditPair)]
    return pairs, [item for item in items if not isinstance(item, EditPair)]


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    line = [sys.executable, "data_prep/build_oracles.py", "corpora=[hub]", *arguments]
    return subprocess.run(line, cwd=ROOT, env=os.environ | environment, capture_output=True, encoding="utf-8")


# --- rows to edits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["e.jsonl", "e.jsonl.gz", "e.parquet", "e.csv", "saved/*.arrow"])
def test_texts_come_byte_for_byte_from_every_kind_of_file(tmp_path, name):
    file = write(tmp_path / name, [dict(zip(FIELDS, texts, strict=True)) for texts in TEXTS])
    pairs, faults = load(data_files=[file])
    assert [(pair.instruction, pair.before, pair.after) for pair in pairs] == TEXTS
    assert faults == [] and {pair.corpus for pair in pairs} == {"hub"}
    assert [pair.meta for pair in pairs] == [{"dataset": file, "row": number} for number in (1, 2, 3, 4)]
    assert len({pair.id for pair in pairs}) == 4


@pytest.mark.parametrize("way", ["data_files", "path", "both"])
def test_every_cell_of_a_csv_file_is_text_whatever_names_it(tmp_path, way):
    texts = [("null", "NA", "N/A"), ("None", "", "007"), ("1.50", "2024-01-01", "nan")]
    write(tmp_path / "set/e.csv", [dict(zip(FIELDS, row, strict=True)) for row in texts])
    files, path = [str(tmp_path / "set/e.csv")], str(tmp_path / "set")
    settings = {
        "data_files": {"data_files": files},
        "path": {"path": path},
        "both": {"path": path, "data_files": files},
    }
    pairs, faults = load(**settings[way])
    assert [(pair.instruction, pair.before, pair.after) for pair in pairs] == texts and faults == []


def test_number_like_columns_of_a_csv_file_keep_their_characters(tmp_path):
    (tmp_path / "e.csv").write_text("instruction,before,after\n001,007,1.50\n2,08,2.0\n")
    pairs, faults = load(data_files=[str(tmp_path / "e.csv")])
    assert [(pair.instruction, pair.before, pair.after) for pair in pairs] == [
        ("001", "007", "1.50"),
        ("2", "08", "2.0"),
    ]
    assert faults == []


def test_commit_columns_are_found_and_provenance_is_kept(tmp_path):
    write(tmp_path / "set/train.parquet", [commit(number) for number in range(6)])
    pairs, faults = load(path=str(tmp_path / "set"))
    assert len(pairs) == 6 and faults == []
    assert (pairs[1].instruction, pairs[1].before) == ("Set y, 1", "x = 1\ny = 1\n")
    provenance = {key: commit(1)[key] for key in ("commit", "old_file", "new_file", "license", "lang", "repos")}
    assert pairs[1].meta == {"dataset": str(tmp_path / "set"), "row": 2} | provenance
    assert Counter(pair.group for pair in pairs) == {f"owner/r{n},fork/r{n}": 2 for n in range(3)}


def test_named_columns_win_and_equal_documents_share_a_group_where_no_column_says_so(tmp_path):
    rows = [{"ask": f"Do {n}.", "instruction": "no", "old": "a\n", "before": "no", "new": f"{n}\n"} for n in range(2)]
    file = write(tmp_path / "e.jsonl", [*rows, rows[0] | {"old": "b\n"}])
    pairs, _ = load(data_files=[file], instruction="ask", before="old", after="new")
    assert [(pair.instruction, pair.before, pair.after) for pair in pairs[:2]] == [
        ("Do 0.", "a\n", "0\n"),
        ("Do 1.", "a\n", "1\n"),
    ]
    assert pairs[0].group == pairs[1].group != pairs[2].group
    pairs, _ = load(data_files=[file], instruction="ask", before="old", after="new", group="new")
    assert [pair.group for pair in pairs] == ["0\n", "1\n", "0\n"]


def test_every_other_row_is_counted_with_its_reason_and_listed(tmp_path):
    rows = [
        commit(0),
        commit(1, new_contents=None),
        commit(2, subject=7),
        commit(3, old_contents=""),
        commit(4, subject=" \n"),
        commit(0, repos="elsewhere"),
        commit(5, new_contents=commit(5)["old_contents"]),
        commit(6),
    ]
    file = write(tmp_path / "e.jsonl", rows)
    out = tmp_path / "out"
    config = OracleConfig(corpora=["hub"], hub=HubConfig(data_files=[file]), out=str(out), heldout=0.5)
    entry = build_oracles(config)["corpora"]["hub"]
    assert entry["offered"] == 8 and entry["train"] + entry["heldout"] == 3
    assert entry["rejected"] == {"null": 1, "not_text": 1, "empty": 1, "duplicate": 1, "no_op": 1}
    listed = list(read_rows(out / "rejected.jsonl"))
    assert sorted((fault["row"], fault["reason"]) for fault in listed) == [
        (2, "null"),
        (3, "not_text"),
        (5, "empty"),
        (6, "duplicate"),
        (7, "no_op"),
    ]
    assert {fault["row"]: fault["detail"] for fault in listed}[3] == "subject is int"
    for split in ("train", "heldout"):
        for row in read_split(out, ["hub"], split):
            assert resolve(parse(row.program), row.before) == row.after


VALUES = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.lists(st.text(max_size=1), max_size=1))
ROWS = st.dictionaries(st.sampled_from(["instruction", "subject", "before", "old_contents", "after"]), VALUES)


@settings(deadline=None)
@given(ROWS)
def test_every_row_is_three_texts_or_one_reason(row):
    texts, reason, detail = read_edit(row, Columns())
    if not reason:
        assert texts[1:] == [row.get("before", row.get("old_contents")), row["after"]]
        assert all(isinstance(text, str) for text in texts) and texts[0].strip()
    else:
        assert texts == [] and detail and reason in {"missing_field", "null", "not_text", "empty"}


def test_limit_reads_the_first_rows_alone(tmp_path):
    file = write(tmp_path / "e.jsonl", [commit(number) for number in range(9)])
    pairs, _ = load(data_files=[file], limit=4)
    assert [pair.meta["row"] for pair in pairs] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("Do.,a,b,\nDo more.,c,d,\n", r"row 1 \(it ends in line 2\) has 4 cells, the header 3"),
        ('Do.,a,b\n\n"Do\nmore.",a\n', r"row 2 \(it ends in line 5\) has 2 cells, the header 3"),
        ("Do.,a,b\nDo more.,c,d,e\n", r"row 2 \(it ends in line 3\) has 4 cells, the header 3"),
    ],
    ids=["trailing comma", "short", "long"],
)
@pytest.mark.parametrize("name", ["e.csv", "e.csv.gz"])
@pytest.mark.parametrize("as_folder", [False, True])
def test_a_row_of_csv_with_other_cells_than_the_header_is_named_and_never_shifted(
    tmp_path, body, message, name, as_folder
):
    data = f"instruction,before,after\n{body}".encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(UserError, match=f"{name}, {message}"):
        load(**({"path": str(tmp_path)} if as_folder else {"data_files": [str(tmp_path / name)]}))


def test_csv_with_a_mark_blank_lines_long_cells_and_any_line_end_is_read(tmp_path):
    long = "x" * 200_000
    text = f'\ufeffinstruction,before,after\r\n\r\n  \r\nDo.,"a,\n""",{long}\r\nDo more.,,b\r\n'
    (tmp_path / "e.csv").write_bytes(text.encode())
    pairs, faults = load(data_files=[str(tmp_path / "e.csv")])
    assert [(pair.instruction, pair.before, pair.after) for pair in pairs] == [
        ("Do.", 'a,\n"', long),
        ("Do more.", "", "b"),
    ]
    assert faults == []
    (tmp_path / "set").mkdir()
    (tmp_path / "set/train.tsv").write_text("instruction\tbefore\tafter\nDo, now.\ta\tb\n")
    (tmp_path / "set/test.tsv").write_text("instruction\tbefore\tafter\nDo.\ta\n")
    assert [pair.instruction for pair in load(path=str(tmp_path / "set"))[0]] == ["Do, now."]
    with pytest.raises(UserError, match="test.tsv, row 1 .* has 2 cells"):
        load(path=str(tmp_path / "set"), split="test")
    (tmp_path / "e.csv").write_text("instruction,before,after\nDo.,a,b\nDo.,a\n")
    assert len(load(data_files=[str(tmp_path / "e.csv")], limit=1)[0]) == 1


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_missing_column_is_one_error_that_lists_those_there_are(tmp_path):
    file = write(tmp_path / "e.jsonl", [{"prompt": "p", "before": "a", "result": "b"}])
    with pytest.raises(UserError) as error:
        load(data_files=[file], after="outcome")
    assert "no column instruction or subject or message, no column outcome; it has prompt, before, result" in str(
        error.value
    )
    with pytest.raises(UserError, match="no column who; it has"):
        load(data_files=[file], instruction="prompt", after="result", group="who")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"path": "nuprl/CanItEdit"}, "licence .* forbids training"),
        ({"data_files": ["hf://datasets/nuprl/CanItEdit/data/test.parquet"]}, "licence .* forbids training"),
        ({"path": "bigcode/humanevalpack", "name": "python"}, r"corpora=\[hevalfix-py\]"),
        ({"path": "bigcode/commitpackft"}, "name one, such as python"),
        ({"path": "x/y", "limit": 0}, "at least 1"),
    ],
)
def test_a_data_set_not_to_train_on_is_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        HubConfig(**settings)


def test_a_copy_of_canitedit_is_known_by_its_columns(tmp_path):
    row = {"instruction_descriptive": "d", "instruction_lazy": "l", "before": "a", "after": "b"}
    file = write(tmp_path / "copy.jsonl", [row])
    with pytest.raises(UserError, match="CanItEdit.*forbids training"):
        load(data_files=[file], instruction="instruction_lazy")
    assert read_edit(row, Columns("instruction_lazy"))[:2] == ([], "evaluation_only")  # as a pipeline meets it


@pytest.mark.parametrize(
    "files, message",
    [
        (["a.jsonl", "b.csv"], "files of one kind"),
        (["a.xlsx"], "files of one kind"),
        (["absent.jsonl"], "no file matches absent.jsonl"),
        (["there.jsonl", "none*.jsonl"], r"no file matches none\*.jsonl"),
        (["empty.jsonl"], "empty.jsonl has no rows"),
        (["empty.csv"], "empty.csv has no rows"),
    ],
)
def test_files_that_cannot_be_read_are_named(files, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "there.jsonl", [commit()])
    for name in ("empty.jsonl", "empty.csv"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=message):
        load(data_files=files)


@pytest.mark.parametrize(
    "path, message",
    [
        ("{tmp}/nope", "hub.path={tmp}/nope: there is no such folder"),
        ("./nope", "there is no such folder"),
        ("~/no such folder of mine", "there is no such folder"),
        (r"data\edits", "there is no such folder"),
        ("{tmp}/e.csv", r"is a file: name it with hub.data_files=\[{tmp}/e.csv\]"),
    ],
)
def test_a_path_that_is_no_folder_of_this_machine_is_said_to_be_none(path, message, tmp_path):
    write(tmp_path / "e.csv", [commit()])
    with pytest.raises(UserError, match=message.format(tmp=tmp_path)):
        load(path=path.format(tmp=tmp_path))


@pytest.mark.parametrize("bad", ['{"subject": oops}', "[1]", '{"cut": "of', json.dumps(commit(subject="\ud800"))])
@pytest.mark.parametrize("as_folder", [False, True])
def test_a_damaged_row_of_a_local_file_is_named_with_the_corpus_that_goes_on(tmp_path, bad, as_folder):
    first = write(tmp_path / "set/a.jsonl", [commit(n) for n in range(3)])
    second = write(tmp_path / "set/b.jsonl", [commit(n) for n in range(3, 300)])
    with Path(second).open("a") as file:
        file.write("\n" + bad + "\n" + json.dumps(commit(300)) + "\n")
    with pytest.raises(UserError, match=rf"{second}, row 299: .*corpora=\[jsonl\] refuses such rows and goes on"):
        load(**({"path": str(tmp_path / "set")} if as_folder else {"data_files": [first, second]}))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (json.dumps(commit()).encode("utf-16"), "is in UTF-16: save it as UTF-8"),
        (json.dumps(commit()).encode("utf-32"), "is in UTF-32: save it as UTF-8"),
        (gzip.compress(json.dumps(commit()).encode())[:-9], "is packed by gzip: unpack it"),
    ],
    ids=["utf-16", "utf-32", "gzip"],
)
def test_a_file_without_rows_is_named_as_what_it_is(tmp_path, data, message):
    (tmp_path / "e.jsonl").write_bytes(data)
    with pytest.raises(UserError, match=f"e.jsonl {message}") as error:
        load(data_files=[str(tmp_path / "e.jsonl")])
    assert "corpora=[jsonl]" not in str(error.value)


@pytest.mark.parametrize("inner", ["b.csv", "more/b.csv"])
def test_a_folder_with_files_of_several_kinds_is_refused_unless_a_card_names_some(tmp_path, inner):
    write(tmp_path / "a.jsonl", [commit(1), commit(2)])
    write(tmp_path / inner, [commit(3)])
    with pytest.raises(UserError, match=r"several kinds, \.csv, \.jsonl, .*name files of one kind"):
        load(path=str(tmp_path))
    assert len(load(path=str(tmp_path), data_files=["*.jsonl"])[0]) == 2
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files: {inner}\n---\n")
    assert len(load(path=str(tmp_path))[0]) == 1
    (tmp_path / "README.md").unlink()
    (tmp_path / inner).unlink()
    (tmp_path / "c.json").write_text(json.dumps(commit(4)))  # another end, but the same reader
    assert len(load(path=str(tmp_path))[0]) == 3
    (tmp_path / inner).parent.joinpath("dataset_info.json").write_text("{}")
    (tmp_path / "c.json").unlink()
    assert len(load(path=str(tmp_path))[0]) == 2


def test_a_damaged_file_and_a_split_that_is_not_there_are_one_error(tmp_path):
    damaged = tmp_path / "e.parquet"
    write(damaged, [commit()])
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(UserError, match="cannot read .*e.parquet"):
        load(data_files=[str(damaged)])
    write(tmp_path / "set/train.jsonl", [commit()])
    with pytest.raises(UserError, match="Available splits"):
        load(path=str(tmp_path / "set"), split="test")
    write(tmp_path / "saved/x.arrow", [commit()])
    with pytest.raises(UserError, match=r"hub\.data_files=\[.*saved/\*\.arrow\]"):
        load(path=str(tmp_path / "saved"))


def test_code_of_a_data_set_is_never_run(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set/set.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    write(tmp_path / "set/train.jsonl", [commit()])
    with pytest.raises(UserError, match="scripts are no longer supported"):
        load(path=str(tmp_path / "set"))
    assert not (tmp_path / "ran").exists()


def test_without_the_hub_one_line_says_what_to_do(tmp_path):
    done = command("hub.path=someone/edits", f"out={tmp_path / 'out'}", HF_HUB_OFFLINE="1")
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("error: hub: cannot read someone/edits") and "hub.data_files=" in line


def test_the_corpus_needs_a_source_and_counts_among_the_settings_only_where_it_is_prepared():
    with pytest.raises(ValueError, match=r"hub\.path=OWNER/NAME"):
        OracleConfig(corpora=["hub"])
    assert "hub" not in content_settings(OracleConfig())
    config = OracleConfig(corpora=["hub"], hub=HubConfig(path="a/b"))
    assert content_settings(config)["hub"]["path"] == "a/b"


# --- a hub ------------------------------------------------------------------------------------------------------------

REVISION = "c0ffee" + "0" * 34
HUB_FILES = {
    "commitpackft.py": b"raise SystemExit('the script was run')",
    "data/python/data.jsonl": "".join(json.dumps(commit(number)) + "\n" for number in range(3)).encode(),
    "data/rust/data.jsonl": (json.dumps(commit(9, lang="Rust")) + "\n").encode(),
}


class Hub(BaseHTTPRequestHandler):
    """The requests of the hub's client for one data set, bigcode/commitpackft: its commit, folders and files."""

    def log_message(self, *_) -> None: ...

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        paths = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body)["paths"]
        self._send([self._entry(path) for path in paths if path in HUB_FILES])

    def do_GET(self) -> None:
        path = unquote(self.path).split("?")[0]
        if path.startswith(f"/datasets/bigcode/commitpackft/resolve/{REVISION}/"):
            content = HUB_FILES[path.split(f"{REVISION}/")[1]]
            first, last = (int(n) for n in self.headers["Range"].removeprefix("bytes=").split("-"))
            span = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
            self._send(content[first : last + 1], 206, span)
        elif path.startswith(f"/api/datasets/bigcode/commitpackft/tree/{REVISION}"):
            folder = path.split(REVISION)[1].strip("/")
            inside = [name for name in HUB_FILES if not folder or name.startswith(folder + "/")]
            here = {name.removeprefix(folder).strip("/").split("/")[0]: name for name in inside}
            paths = [f"{folder}/{name}".strip("/") for name in here]
            self._send([self._entry(p) for p in paths]) if inside else self._send(
                {}, 404, {"X-Error-Code": "EntryNotFound"}
            )
        elif path in ("/api/datasets/bigcode/commitpackft", f"/api/datasets/bigcode/commitpackft/revision/{REVISION}"):
            self._send({"id": "bigcode/commitpackft", "sha": REVISION, "tags": [], "siblings": []})
        else:
            self._send({}, 404, {"X-Error-Code": "RepoNotFound"})

    def _entry(self, path: str) -> dict:
        if path not in HUB_FILES:
            return {"type": "directory", "path": path, "oid": "0" * 40, "size": 0}
        content = HUB_FILES[path]
        return {"type": "file", "path": path, "oid": hashlib.sha1(content).hexdigest(), "size": len(content)}

    def _send(self, what: bytes | dict | list, status: int = 200, headers: dict | None = None) -> None:
        content = what if isinstance(what, bytes) else json.dumps(what).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def test_commitpackft_is_read_from_a_hub_without_its_script(tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(tmp_path / "cache"),
            "HF_HUB_OFFLINE": "0",
            "NO_PROXY": "127.0.0.1",
        }
        out = f"out={tmp_path / 'out'}"
        done = command("hub.path=bigcode/commitpackft", "hub.name=python", "heldout=0", out, **environment)
        absent = command("hub.path=bigcode/commitpackft", "hub.name=cobol", out, **environment)
        server.shutdown()
    assert done.returncode == 0, done.stderr
    rows = read_split(tmp_path / "out", ["hub"], "train")
    assert [row.instruction for row in rows] == ["Set y, 0", "Set y, 1", "Set y, 2"]
    assert {row.meta["revision"] for row in rows} == {REVISION}
    assert rows[0].id == "hub/bigcode/commitpackft/python:1" and rows[0].meta["license"] == "mit"
    assert absent.returncode == 2
    [line] = absent.stderr.splitlines()
    assert line.startswith("error: hub: cannot read bigcode/commitpackft/cobol ")
