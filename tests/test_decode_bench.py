"""The speed benchmark on a tiny model: every system writes the gold edits, figures add up, a stopped run goes on."""

from __future__ import annotations

import json

import pytest
from small_models import encoder_of, save_model

from data_prep.pairs import EditPair
from decoding.costs import CostCurve
from decoding.drafts import PromptLookup
from eval import decode_bench
from eval.decode_bench import Config
from eval.speed import exact_bound, speedup
from eval.speed_report import figures

EDITS = [
    EditPair(
        "one",
        "made",
        "Fix it.",
        "def f(a):\n    b = a\n    return b - 1\n",
        "def f(a):\n    b = a\n    return b\n",
        "1",
    ),
    EditPair(
        "two",
        "made",
        "Fix it.",
        "x = 1\ny = 2\nz = 3\n" * 5,
        "x = 1\ny = 2\nz = 4\n" + "x = 1\ny = 2\nz = 3\n" * 4,
        "2",
    ),
    EditPair("three", "made", "Fix it.", "a\nb\n", "a\n>>>>>>> REPLACE\nb\n", "3"),
]


@pytest.fixture
def config(tmp_path, monkeypatch) -> Config:
    monkeypatch.setattr(decode_bench, "load_workload", lambda name, folder, limit, seed: EDITS[:limit])
    return Config(
        model=str(save_model(tmp_path / "model", "qwen2")),
        workloads=["made"],
        limit=3,
        ar_limit=2,
        lookups=["2:10:first", "3:20:recent"],
        batch_workloads=["made"],
        batch_sizes=[1, 2],
        batch_limit=3,
        out=str(tmp_path / "out"),
    )


def test_every_system_writes_the_gold_edits_and_is_reported(config, tmp_path, capsys):
    decode_bench.main(config)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    systems = summary["workloads"]["made"]["systems"]
    assert set(systems) == {
        "autoregressive",
        "lookup 2:10:first",
        "lookup 3:20:recent",
        "search_replace",
        "search_replace + lookup",
        "unified_diff",
        "unified_diff + lookup",
        "paper's decoder",
        *(f"{how}, splice={splice}" for how in ("fused", "drafted") for splice in ("none", "full")),
    }
    assert systems["autoregressive"]["n"] == 2
    assert (systems["search_replace"]["n"], systems["search_replace"]["inexpressible"]) == (2, 1)
    assert all(entry["n"] == 3 for name, entry in systems.items() if entry["kind"] not in ("ar", "format"))
    # One id a forward without guesses, never more forwards with them, and the paper's decoder needs the most.
    assert systems["autoregressive"]["forwards"] == systems["autoregressive"]["written"]
    for splice in ("none", "full"):
        assert systems[f"drafted, splice={splice}"]["forwards"] <= systems[f"fused, splice={splice}"]["forwards"]
        assert systems[f"fused, splice={splice}"]["forwards"] < systems["paper's decoder"]["forwards"]
    best = summary["workloads"]["made"]["best_lookup"]
    assert systems[best]["wall_s"] == min(entry["wall_s"] for entry in systems.values() if entry["kind"] == "lookup")
    assert systems[best]["wall_s_x_lookup"] == pytest.approx(1.0)
    assert {(row["system"], row["batch_size"]) for row in summary["batches"]} == {
        (name, size)
        for name in ("autoregressive", best, "drafted, splice=none", "drafted, splice=full")
        for size in (1, 2)
    }
    assert (tmp_path / "out" / "plot.svg").read_text().lstrip().startswith("<?xml")
    assert (tmp_path / "out" / "report.md").read_text() in capsys.readouterr().out


def test_a_stopped_run_goes_on_and_times_nothing_twice(config, tmp_path):
    decode_bench.main(config)
    path = tmp_path / "out" / "rows.jsonl"
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join(rows[:7]) + rows[7][:30])
    decode_bench.main(config)
    again = path.read_text().splitlines(keepends=True)
    assert again[:7] == rows[:7]
    keys = [(row["system"], row["case"]) for row in map(json.loads, again)]
    assert sorted(keys) == sorted((row["system"], row["case"]) for row in map(json.loads, rows))


def test_ratios_are_over_the_cases_that_both_systems_ran():
    def row(system, kind, case, wall):
        counts = dict.fromkeys(("written", "forwards", "fed", "heads"), 1)
        return {"system": system, "kind": kind, "case": case, "wall_s": wall, "total_s": wall + 1, **counts}

    rows = [row("ar", "ar", 0, 8.0), row("ours", "splice", 0, 2.0), row("ours", "splice", 1, 100.0)]
    rows += [row("lookup", "lookup", 0, 1.0), row("lookup", "lookup", 1, 101.0)]
    result = figures(rows, [10, 20], bound=2.0)["systems"]["ours"]
    assert result["wall_s_x_ar"] == 4.0
    assert result["total_s_x_ar"] == 3.0
    assert result["wall_s_x_lookup"] == 1.0
    assert result["realised_of_bound"] == 2.0
    assert result["tokens_per_s"] == pytest.approx(30 / 102)


def test_the_bound_is_equation_3():
    encoder = encoder_of("byte_level")
    kernel = CostCurve((1, 512), (1.0, 1.0))  # a forward costs the same at any width: s(N) = N
    curve = speedup(kernel)
    assert curve(1) == 1.0
    assert curve(512) == curve(2000) == 512.0
    after = EDITS[0].after
    copied = [encoder.text.encode("def f(a):\n    b = a"), encoder.text.encode("")]
    total = len(encoder.text.encode(after))
    generated = total - sum(map(len, copied))
    expected = total / (generated + len(copied[0]) / curve(len(copied[0])))
    assert exact_bound(encoder, EDITS[:1], curve) == pytest.approx(expected)


@pytest.mark.parametrize("lookup", ["3:64", "3:64:last", "a:1:first"])
def test_a_lookup_that_cannot_be_read_is_refused(config, lookup):
    config.lookups = [lookup]
    with pytest.raises(Exception, match="longest:count:first"):
        decode_bench.main(config)


def test_prompt_lookup_drafts_what_followed():
    assert PromptLookup(2, 3).continuation([1, 2, 3, 4, 1, 2, 5], [1, 2]) == [3, 4, 1]
    assert PromptLookup(2, 3, recent=True).continuation([1, 2, 3, 4, 1, 2, 5], [1, 2]) == [5, 1, 2]
