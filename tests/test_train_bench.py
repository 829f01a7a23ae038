"""The training benchmark on a tiny model: both systems take the same steps, and figures add up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import encoder_of, save_model

from cad_train.examples import encode_row
from data_prep.oracle import build_oracle
from data_prep.prepared import OracleRow
from decoding.grammar import render
from recipes.train_bench import Config, varied

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_both_systems_take_the_same_steps(tmp_path, adapter):
    arguments = [
        *[f"model={save_model(tmp_path / 'model', 'qwen2')}", f"adapter={adapter}", "lr=1e-3", "max_length=2048"],
        *["max_steps=2", "repeats=1", "batch_size=4", "micro_batch=2", f"out={tmp_path / 'out'}", "precision=fp32"],
        *["data.corpora=[probeedit]", "data.probeedit.cases=10", "data.probeedit.min_lines=4"],
        *["data.probeedit.max_lines=6", f"data.out={tmp_path / 'oracles'}"],
        f"tokenise={20 if adapter == 'full' else 0}",
    ]
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "recipes/train_bench.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    ours, plain = (summary["systems"][system] for system in ("ours", "plain TRL"))
    assert len(ours["losses"]) == 2
    assert ours["losses"] == pytest.approx(plain["losses"], abs=1e-4)
    assert summary["same_order"] is True
    ((first, second),) = [turn["lengths"] for turn in ours["turns"]]
    assert len(first) == len(second) == 4
    assert ours["tokens_per_s"] == pytest.approx(sum(second) / ours["turns"][0]["seconds"][1])
    flops = summary["floor"]["flops"]
    assert flops["total"] == sum(flops[part] for part in ("body", "attention", "recomputed", "head"))
    assert flops["head"] < flops["full_head"]
    report = (tmp_path / "out" / "report.md").read_text()
    assert report in done.stdout
    assert ("examples, every core, from the cache" in report.replace("20, ", "examples, ")) == (adapter == "full")
    if adapter == "full":
        kept = [entry["kept"] for entry in summary["tokenising"].values() if isinstance(entry, dict)]
        assert kept == [20] * 4


@given(st.text(alphabet="program copy lines abc\n", max_size=60), st.text(alphabet="abcd \n", max_size=60))
def test_a_varied_example_is_still_its_oracle(before, after):
    if before == after:
        return
    program = render(build_oracle(before, after))
    row = OracleRow("row", "jsonl", "train", "row", "Change it.", before, after, program, [], {})
    copies = [varied(row, number) for number in range(5)]
    assert copies[0] == row
    for copy in copies:
        assert copy.program == render(build_oracle(copy.before, copy.after))


def test_varied_examples_differ_in_their_ids():
    before = "def total(values):\n    count = len(values)\n    return count\n"
    after = before.replace("count = len(values)", "count = sum(values)")
    row = OracleRow(
        "row", "jsonl", "train", "row", "Fix it.", before, after, render(build_oracle(before, after)), [], {}
    )
    encoder = encoder_of("byte_level")
    ids = {tuple(encode_row(encoder, varied(row, number), "numbered", "none")[0]) for number in range(40)}
    assert len(ids) == 40


@pytest.mark.parametrize("bad", [{"max_steps": 1}, {"repeats": 0}, {"tokenise": -1}, {"adapter": "qlora"}])
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Config(**bad)
