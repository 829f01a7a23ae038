"""Duplicates and leaks: exact ones are always found, what is called near is near, and a build counts what it drops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import data_prep.hygiene as hygiene
from data_prep.build import OracleConfig, prepare_corpora
from data_prep.hygiene import (
    LEAK_KINDS,
    HygieneConfig,
    document_shingles,
    edit_shingles,
    find_duplicates,
    find_leaks,
    jaccard,
    recall,
    refuse_duplicates,
    refuse_leaks,
)
from data_prep.pairs import EditPair
from data_prep.split import choose_edits
from decoding.commandline import UserError

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa".split()
DATA = os.environ.get("CAD_DATA_DIR")


def edit(name: str, before: str, after: str, **meta: object) -> EditPair:
    return EditPair(name, "made", "change it", before, after, name, meta)


def document(first: int, lines: int = 30) -> str:
    return (
        "\n".join(f"line {first + i} says {WORDS[(first * 7 + i * 3) % 10]} {first * i}" for i in range(lines)) + "\n"
    )


def changed(text: str, line: int, to: str) -> str:
    lines = text.split("\n")
    lines[line] = to
    return "\n".join(lines)


texts = st.lists(st.sampled_from([*WORDS, "\n", "\n", "  ", "\r\n", "\u00e9", "\ud800"]), max_size=12).map(" ".join)
rows_of = st.lists(st.tuples(texts, texts), max_size=12).map(
    lambda pairs: [edit(str(number), *pair) for number, pair in enumerate(pairs)]
)


@given(rows_of, st.sampled_from([0.3, 0.5, 0.8, 1.0]), st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_every_verdict_is_exact_and_every_exact_duplicate_is_found(rows, threshold, seed):
    found = find_duplicates(rows, threshold, seed)
    removed = {each.row for each in found}
    contents = [(row.before, row.after) for row in rows]
    sets = [edit_shingles(*content) for content in contents]
    for each in found:
        assert each.kept < each.row and each.kept not in removed
        assert each.similarity == jaccard(sets[each.kept], sets[each.row]) >= threshold
        assert each.exact == (contents[each.kept] == contents[each.row])
    assert {number for number, content in enumerate(contents) if content in contents[:number]} <= removed
    # Equal sets have equal signatures, so that these cannot be missed either.
    kept = [sets[number] for number in range(len(rows)) if number not in removed]
    assert all(kept[i] != kept[j] for i in range(len(kept)) for j in range(i))


def test_near_duplicates_are_found_as_often_as_is_said():
    """Edits of 100 words in all, some of them with a few other words: all similarities around the threshold."""
    rows, pairs = [], []
    for number in range(150):
        words = [f"w{number}x{i}" for i in range(100)]
        other = list(words)
        for place in range(number % 5 + 1):
            other[place * 20] = f"other{number}y{place}"
        pairs.append((len(rows), len(rows) + 1))
        rows += [edit(f"{number}", "", " ".join(words)), edit(f"{number}'", "", " ".join(other))]
    sets = [edit_shingles(row.before, row.after) for row in rows]
    found = {(each.kept, each.row) for each in find_duplicates(rows, 0.8)}
    near = [(pair, jaccard(sets[pair[0]], sets[pair[1]])) for pair in pairs]
    assert found <= {pair for pair, similarity in near if similarity >= 0.8}
    expected = sum(recall(0.8, similarity) for _, similarity in near if similarity >= 0.8)
    assert expected > 50 and abs(len(found) - expected) < 5


def test_two_edits_of_one_document_are_two_edits_and_one_edit_of_two_documents_is_one():
    text, other = document(0, 60), document(500, 60)
    # The same ten lines stand in the middle of both documents.
    shared = document(900, 10)
    first, second = text + shared + text, other + shared + other
    rows = [
        edit("a", text, changed(text, 5, "something new stands here")),
        edit("b", text, changed(text, 40, "and something else there")),
        edit("c", first, changed(first, 65, "an edit of the shared part")),
        edit("d", second, changed(second, 65, "an edit of the shared part")),
    ]
    assert jaccard(document_shingles(rows[0].before, rows[0].after), document_shingles(rows[1].before, "")) > 0.8
    [found] = find_duplicates(rows)
    assert (found.row, found.kept, found.similarity, found.exact) == (3, 2, 1.0, False)


def test_layout_is_content_of_an_edit_and_none_of_a_document():
    before = "def f(x):\n    return x\n"
    deep, wide = before.replace("    ", "        "), before.replace("(x)", "( x )")
    assert edit_shingles(before, deep) != edit_shingles(before, wide)
    assert document_shingles(before, before) == document_shingles(deep, wide)


def test_seed_processes_and_number_of_cores_do_not_change_what_is_found(monkeypatch):
    rows = [edit(str(i), document(i // 2), changed(document(i // 2), 3, f"new {i // 2}")) for i in range(60)]
    expected = find_duplicates(rows)
    assert [(each.kept, each.row) for each in expected] == [(i, i + 1) for i in range(0, 60, 2)]
    leaks = find_leaks(rows[:40], rows[30:])
    monkeypatch.setattr(hygiene, "_ROWS_A_BATCH", 7)
    monkeypatch.setattr(hygiene, "_ROWS_A_WORKER", 10)
    monkeypatch.setattr(hygiene, "usable_cores", lambda: 3)
    assert find_duplicates(rows) == expected == find_duplicates(rows, seed=7)
    assert find_leaks(rows[:40], rows[30:]) == leaks


def test_the_workers_of_a_build_bound_the_processes_of_its_search(monkeypatch):
    rows = [edit(str(i), document(i), changed(document(i), 3, f"new {i}")) for i in range(20)]
    asked = []
    pools = SimpleNamespace(Pool=lambda workers: asked.append(workers) or ThreadPool(workers))
    monkeypatch.setattr(hygiene, "multiprocessing", SimpleNamespace(get_context=lambda method: pools))
    monkeypatch.setattr(hygiene, "_ROWS_A_WORKER", 1)
    monkeypatch.setattr(hygiene, "usable_cores", lambda: 3)
    refuses = HygieneConfig(near_duplicates=True, drop_leaks=["same_gold"])
    for workers in (1, 2, None):
        choose_edits({"made": rows}, OracleConfig(heldout=0.5, hygiene=refuses, workers=workers))
    assert asked == [2, 2, 3, 3]


def test_every_kind_of_leak():
    a, b, c, d = (document(1000 * i) for i in range(1, 5))
    gold = changed(a, 4, "the gold of the first")
    near = changed(changed(c, 2, "one line differs"), 9, "and the edit too")
    held_out = [
        edit("gold", a, gold),
        edit("document", b, changed(b, 3, "held-out edit"), repo="here", path="src/a.py", commit="1"),
        edit("near", c, changed(c, 9, "held-out edit of it")),
        edit("blank", "", "\n"),
    ]
    train = [
        edit("same gold", d, gold),  # another document
        edit("undone", gold, a),  # the held-out gold is the document, the held-out document the gold
        edit("same document", b, changed(b, 20, "another edit of it")),
        edit("near document", changed(c, 2, "one line differs"), near),
        edit("same file", document(50_000), document(60_000), repo="here", path="src/a.py", commit="2"),
        edit("renamed", document(70_000), document(75_000), repo="here", path="b.py", old_path="src/a.py", commit="3"),
        edit("same commit", document(80_000), document(85_000), repo="here", path="c.py", commit="1"),
        edit("elsewhere", document(90_000), document(95_000), repo="there", path="src/a.py", commit="1"),
        edit("blank too", "\n", "word " * 40),
        edit("clean", document(96_000), document(97_000)),
    ]
    found = find_leaks(train, held_out)
    kinds: dict[str, list[tuple[str, str]]] = {}
    for leak in found.leaks:
        kinds.setdefault(train[leak.row].id, []).append((leak.kind, held_out[leak.held_out].id))
        if leak.kind != "near_document":
            assert leak.similarity == 1.0
    assert kinds == {
        "same gold": [("same_gold", "gold")],
        "undone": [("same_gold", "gold"), ("same_document", "gold"), ("near_document", "gold")],
        "same document": [("same_document", "document"), ("near_document", "document")],
        "near document": [("near_document", "near")],
        "same file": [("same_path", "document"), ("same_repository", "document")],
        "renamed": [("same_path", "document"), ("same_repository", "document")],
        "same commit": [("same_commit", "document"), ("same_repository", "document")],
    }
    assert list(found.counts().values()) == [2, 2, 3, 2, 1, 3]
    assert [found.reached[kind] for kind in LEAK_KINDS] == [1, 2, 3, 1, 1, 1]
    assert found.compared == set(LEAK_KINDS)
    assert found.rows(["same_gold", "same_document"]) == {0, 1, 2}
    assert find_leaks(train, held_out[:1]).compared == {"same_gold", "same_document", "near_document"}


@given(rows_of, rows_of, st.sampled_from([0.3, 0.8]))
@settings(deadline=None, max_examples=60)
def test_leaks_of_content_are_those_that_a_search_of_all_pairs_finds(train, held_out, threshold):
    found = find_leaks(train, held_out, threshold)
    for kind, shown in (("same_gold", lambda row: row.after), ("same_document", lambda row: row.before)):
        pairs = [
            (i, j)
            for i, row in enumerate(train)
            for j, other in enumerate(held_out)
            if shown(other).strip() and shown(other) in (row.before, row.after)
        ]
        assert found.rows([kind]) == {i for i, _ in pairs}
        assert found.reached[kind] == len({j for _, j in pairs})
    for leak in found.leaks:
        if leak.kind == "near_document":
            sets = [document_shingles(row.before, row.after) for row in (train[leak.row], held_out[leak.held_out])]
            assert leak.similarity == jaccard(*sets) >= threshold


def test_a_build_refuses_duplicates_and_leaks_by_name():
    text = document(3)
    after = changed(text, 5, "new words stand here now")
    corpora = {
        "one": [edit("a", text, after), edit("b", document(9), document(8))],
        "none": [],
        "two": [
            edit("e", document(900), document(800)),
            edit("c", text, after, file="f.jsonl", row=4),
            edit("d", text + "\n\nmore", after + "\n\nmore"),
        ],
    }
    refused = refuse_duplicates(corpora, HygieneConfig(), seed=0)
    assert list(refused["two"]) == [1, 2] and refused["one"] == refused["none"] == {}
    assert refused["two"][1] == {
        "file": "f.jsonl",
        "row": 4,
        "reason": "duplicate",
        "detail": "the edit of a",
        "id": "c",
        "kept": "a",
        "similarity": 1.0,
    }
    near = refused["two"][2]
    assert (near["reason"], near["id"], near["kept"], near["similarity"]) == ("near_duplicate", "d", "a", 1.0)

    train = {
        "one": [edit("clean", document(60), document(61)), edit("a", text, after)],
        "none": [],
        "two": [edit("c", document(8), after)],
    }
    held_out = [edit("b", text, document(7)), edit("far", document(70), document(8))]
    config = HygieneConfig(drop_leaks=["same_gold", "same_document"])
    refused = refuse_leaks(train, held_out, config, seed=0)
    assert [list(of) for of in refused.values()] == [[1], [], [0]]
    of_a, of_c = refused["one"][1], refused["two"][0]
    assert (of_a["reason"], of_a["id"], of_a["kinds"], of_a["held_out"]) == ("leak", "a", ["same_document"], "b")
    assert (of_c["kinds"], of_c["held_out"]) == (["same_gold"], "far")
    both = refuse_leaks(train, [edit("b", text, after)], config, seed=0)
    assert both["one"][1]["kinds"] == ["same_gold", "same_document"]
    assert refuse_leaks(train, held_out, HygieneConfig(), seed=0) == {"one": {}, "none": {}, "two": {}}


def test_origins_are_those_of_published_commits():
    """CommitPack has several repositories in one field, and the path before and after a commit."""
    origin = {"repos": "here/x,fork/x", "old_file": "a.py", "new_file": "b.py", "commit": "1"}
    held_out = [edit("a", document(1), document(2), **origin)]
    train = [
        edit("fork", document(100), document(200), repo="fork/x", path="c.py"),
        edit("renamed", document(300), document(400), repo="here/x", path="a.py"),
        edit("commit", document(500), document(600), repos=["there", "fork/x"], commit="1"),
        edit("elsewhere", document(700), document(800), repos="there", old_file="a.py", commit="1"),
        edit("nowhere", document(900), document(950), path="a.py", commit="1"),
    ]
    found = {(train[leak.row].id, leak.kind) for leak in find_leaks(train, held_out).leaks}
    assert found == {
        ("fork", "same_repository"),
        ("renamed", "same_repository"),
        ("renamed", "same_path"),
        ("commit", "same_repository"),
        ("commit", "same_commit"),
    }


def test_held_out_folders_without_a_kind_of_leak_are_refused():
    with pytest.raises(ValueError, match="drop_leaks"):
        HygieneConfig(held_out=["data/other"])


@pytest.mark.parametrize("threshold", [0.0, 1.5, -1.0])
def test_a_threshold_that_cannot_be_is_refused(threshold):
    with pytest.raises(ValueError, match="threshold="):
        HygieneConfig(threshold=threshold)


def test_without_datasketch_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketch", None)
    with pytest.raises(UserError, match=r"pip install 'cad-train\[hygiene\]'"):
        find_duplicates([edit("a", "b", "c")])


def test_importing_it_loads_nothing_heavy():
    code = "import sys, data_prep.hygiene; print({'torch', 'datasketch', 'numpy', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.skipif(not DATA or not Path(DATA, "commits").is_dir(), reason="CAD_DATA_DIR has no commits")
def test_on_commits_few_edits_are_near_although_many_documents_are():
    files = sorted(Path(DATA, "commits").glob("*.jsonl"))
    rows = prepare_corpora(OracleConfig(corpora=["jsonl"], jsonl=list(map(str, files))))["jsonl"].rows
    found = find_duplicates(rows)
    sets = [edit_shingles(row.before, row.after) for row in rows]
    for each in found:
        assert jaccard(sets[each.row], sets[each.kept]) == each.similarity >= 0.8
    near = 0  # by documents: a search of all pairs
    documents: list[set[str]] = []
    for row in rows:
        own = document_shingles(row.before, row.after)
        near += any(jaccard(own, other) >= 0.8 for other in documents if 0.8 <= len(own) / len(other) <= 1.25)
        documents.append(own)
    assert 0 < len(found) < 0.05 * len(rows) < near
    held_out = [row for row in rows if row.split == "heldout"]
    train = [row for row in rows if row.split == "train"]
    leakage = find_leaks(train, held_out)
    by_content = {json.dumps([row.before]) for row in held_out} | {json.dumps([row.after]) for row in held_out}
    shown = {i for i, row in enumerate(train) if {json.dumps([row.before]), json.dumps([row.after])} & by_content}
    assert leakage.rows(["same_gold", "same_document"]) == shown != set()
