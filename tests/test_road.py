"""The whole road on real command lines: oracles, `accelerate launch` of a recipe, held-out report; users' mistakes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from small_models import save_model

ROOT = Path(__file__).resolve().parent.parent
DATA = [
    "corpora=[probeedit,pyfix]",
    "probeedit.cases=10",
    "probeedit.min_lines=4",
    "probeedit.max_lines=6",
    "pyfix.cases=5",
]


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a command line in the checkout, on one thread, away from the hub."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | environment
    return subprocess.run(arguments, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return command(sys.executable, *arguments, **environment)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def launch(*arguments: str) -> subprocess.CompletedProcess:
    accelerate = str(Path(sys.executable).with_name("accelerate"))
    return command(accelerate, "launch", "--config_file", "accelerate_configs/cpu.yaml", *arguments)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), "llama")


def test_oracles_then_training_then_held_out_report(tmp_path, model_folder):
    oracles, run = tmp_path / "oracles", tmp_path / "run"
    built = python("data_prep/build_oracles.py", *DATA, f"out={oracles}", f"tokenizer={model_folder}")
    assert built.returncode == 0, built.stderr
    assert "T_copy" in built.stdout

    trained = launch(
        "recipes/sft_combined.py",
        *[f"data.{setting}" for setting in DATA],
        *[f"data.out={oracles}", f"model={model_folder}", f"out={run}", "max_steps=3", "batch_size=2", "lr=1e-3"],
        *["max_length=4096", "activation_checkpointing=false", "seed=0"],
    )
    assert trained.returncode == 0, trained.stderr
    assert "step    3/3" in trained.stdout
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [0, 1, 2, 3]  # held-out loss before the first step

    score = ["eval/heldout.py", "--ckpt", str(run), "baseline=[fsm,prompt,full]", "max_tokens=24", "limit=2"]
    scored = python(*score)
    assert scored.returncode == 0, scored.stderr
    assert "identity (document unchanged)" in scored.stdout
    assert (run / "heldout" / "report.md").read_text() in scored.stdout
    summary = json.loads((run / "heldout" / "summary.json").read_text())
    rows = [json.loads(line) for line in (run / "heldout" / "cases.jsonl").read_text().splitlines()]
    assert len(rows) == 4 * 3  # the checkpoint and three baselines, two ProbeEdit cases and one of pyfix
    for system in summary["systems"]:
        assert sum(system["outcomes"].values()) == system["n"]
        assert system["exact_match"]["n"] == system["n"]
    assert summary["data"]["fingerprint"] == json.loads((oracles / "manifest.json").read_text())["fingerprint"]

    # Shared out over two processes, the same cases come out, and one report.
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--nproc_per_node", "2", "--master_port", free_port()]
    shared = command(*torchrun, *score, f"out={tmp_path / 'shared'}", "batch_size=3")
    assert shared.returncode == 0, shared.stderr
    assert shared.stdout.count("# Held-out report") == 1
    assert sorted(path.name for path in (tmp_path / "shared").iterdir()) == sorted(
        path.name for path in (run / "heldout").iterdir()
    )
    timed = ("wall_s", "prefill_s", "confidence", "drafted", "accepted", "fed", "heads", "forwards")
    ours = [json.loads(line) for line in (tmp_path / "shared" / "cases.jsonl").read_text().splitlines()]
    for row in rows + ours:
        for key in timed:
            row.pop(key)
    assert ours == rows

    # The same command again decodes nothing and reports the same; a changed setting starts over.
    cases = (run / "heldout" / "cases.jsonl").read_bytes()
    again = python(*score)
    assert again.returncode == 0, again.stderr
    assert (run / "heldout" / "cases.jsonl").read_bytes() == cases


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["recipes/sft_combined.py", "sede=1"], "unknown key 'sede'; did you mean 'seed'?"),
        (["recipes/sft_py.py", "splice=half"], "splice"),
        (["recipes/qlora_7b.py", "missing.yaml"], "missing.yaml"),
        (["recipes/sft_combined.py", "batch_size=0"], "batch_size=0: must be at least 1"),
        (["recipes/sft_combined.py", "report_to=[wandbb]"], "report_to"),
        (["eval/heldout.py"], "ckpt"),
        (["eval/heldout.py", "--ckpt", "nope/run"], "nope/run: no run folder here"),
        (["eval/heldout.py", "--ckpt", "no/such/folder"], "no/such/folder"),
        (["eval/heldout.py", "--ckpt", "x", "strategy=best"], "strategy"),
        (["data_prep/build_oracles.py", "corpora=[hevalfix-cobol]"], "hevalfix-cobol"),
        (["data_prep/build_oracles.py", "corpora=[jsonl]", "jsonl=[no.jsonl]"], "no.jsonl"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(arguments, message, tmp_path):
    extra = [f"out={tmp_path / 'out'}"] if "build_oracles" in arguments[0] else []
    done = python(*arguments, *extra)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and message in done.stderr, done.stderr


def test_a_missing_model_stops_before_anything_is_written(tmp_path):
    done = python(
        "recipes/sft_combined.py",
        *[f"data.{setting}" for setting in DATA],
        *[f"data.out={tmp_path / 'oracles'}", f"model={tmp_path / 'nowhere'}", f"out={tmp_path / 'run'}"],
    )
    assert done.returncode == 2
    assert f"there is no model folder {tmp_path / 'nowhere'}" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("recipe", ["sft_py", "sft_combined", "qlora_7b"])
def test_recipes_default_to_the_papers_settings(recipe):
    done = python(f"recipes/{recipe}.py", "--print-config")
    assert done.returncode == 0, done.stderr
    size = "7B" if recipe == "qlora_7b" else "1.5B"
    expected = [
        f"model: Qwen/Qwen2.5-Coder-{size}-Instruct",
        "lr: 2.0e-05",
        "beta2: 0.95",
        "warmup: 0.03",
        "batch_size: 8",
    ]
    for line in [*expected, "max_length: 1536", f"epochs: {8.0 if recipe == 'sft_py' else 6.0}", "lora_alpha: 32"]:
        assert line in done.stdout, line


@pytest.mark.parametrize("path", sorted((ROOT / "recipes" / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_is_valid(path):
    done = python("recipes/sft_combined.py", str(path), "--print-config")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "accelerate_configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_accelerate_config_is_valid(path):
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(path))
    assert config.num_processes >= 1
