"""Comparing and pooling result folders: the commands on scored runs, and on folders made by hand for the odd cases."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from small_models import save_model

from cad_train.config import TrainConfig
from cad_train.sft import train_selector
from data_prep.build import OracleConfig
from data_prep.probeedit import ProbeEditConfig
from decoding.commandline import UserError
from eval.compare import Config, compare
from eval.report import pool
from eval.results import choose_system, read_results, words_to_key
from eval.scoring import ScoreConfig, score_checkpoints
from eval.tables import summarise

ROOT = Path(__file__).resolve().parent.parent


def command(*arguments: object) -> subprocess.CompletedProcess:
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, *map(str, arguments)]
    return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


def refused(*arguments: object) -> str:
    done = command(*arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


# --- runs that were trained and scored --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two seeds of one recipe and one of another, each scored beside the untrained model; seed 0 by monotone too."""
    folder = tmp_path_factory.mktemp("runs")
    config = TrainConfig(
        data=OracleConfig(
            corpora=["probeedit"],
            out=str(folder / "oracles"),
            probeedit=ProbeEditConfig(cases=20, min_lines=4, max_lines=6),
        ),
        model=str(save_model(folder / "model", "qwen2")),
        max_length=4096,
        max_steps=1,
        batch_size=1,
        activation_checkpointing=False,
        precision="fp32",
        save="no",
    )
    variants = {"seed0": {}, "seed1": {"seed": 1}, "fast": {"lr": 1e-3}}
    out = {}
    for name, settings in variants.items():
        out[name] = Path(train_selector(replace(config, out=str(folder / name), **settings), "sft_combined"))
        score_checkpoints(ScoreConfig(ckpt=[str(out[name])], baseline=["fsm"], max_tokens=12))
    score_checkpoints(ScoreConfig(ckpt=[str(out["seed0"])], strategy="monotone", max_tokens=12))
    score_checkpoints(ScoreConfig(ckpt=[str(out["seed0"])], baseline=["fsm"], max_tokens=12))
    return out


def test_two_runs_are_compared_on_the_command_line(runs, tmp_path):
    done = command("eval/compare.py", runs["seed0"], runs["fast"] / "heldout", f"out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "compare.md").read_text() in done.stdout
    comparison = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert comparison["sides"]["A"]["folder"] == str(runs["seed0"] / "heldout")
    assert comparison["sides"]["B"]["system"] == "checkpoint, fsm"
    [entry] = comparison["corpora"]
    assert entry["cases"] == sum(entry["pairs"].values()) == entry["exact_match"]["A"]["n"] == 4
    scored = json.loads((runs["seed0"] / "heldout" / "summary.json").read_text())["systems"][0]
    assert entry["exact_match"]["A"] == scored["exact_match"]
    assert entry["start_accuracy"]["A"]["rate"] == scored["start_accuracy"]
    assert entry["end_accuracy"]["A"]["n"] == scored["oracle_copies"]


@pytest.mark.parametrize("words", [("fsm", "monotone"), ("untrained", "checkpoint"), ("untrained, fsm", "monotone")])
def test_two_systems_of_one_folder_are_compared(runs, words):
    done = command("eval/compare.py", runs["seed0"], runs["seed0"], "--resamples", 50, "--systems", *words)
    assert done.returncode == 0, done.stderr
    for side, word in zip("AB", words, strict=True):
        [line] = [line for line in done.stdout.splitlines() if line.startswith(f"- {side}: ")]
        assert word in line and ("untrained" in line) == ("untrained" in word)


def test_seeds_pool_and_other_settings_are_rows_of_their_own(runs, tmp_path):
    done = command("eval/report.py", *runs.values(), f"out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out" / "report.md").read_text()
    assert text in done.stdout
    summary = json.loads((tmp_path / "out" / "report.json").read_text())
    rows = {row["label"]: row for row in summary["rows_of_the_report"]}
    pooled, fast = f"{runs['seed0']} and 1 more, fsm", f"{runs['fast']}, fsm"
    assert set(rows) == {pooled, fast, f"{runs['seed0']}, monotone", "untrained, fsm"}
    assert [attempt["seed"] for attempt in rows[pooled]["attempts"]] == [0, 1]
    assert rows[pooled]["differs"]["lr"] == 2e-5 and rows[fast]["differs"]["lr"] == 1e-3
    entries = {entry["label"]: entry for entry in summary["systems"]}
    assert len(entries) == len(summary["systems"]) == 5  # one corpus; the identity beside the four
    assert entries[pooled]["n"] == 8 and entries[pooled]["over_seeds"]["cases"] == 4
    assert entries[pooled]["over_seeds"]["seeds"] == [0, 1]
    assert entries["untrained, fsm"]["n"] == entries[fast]["n"] == 4
    assert "scored in 2 more folders, not counted" in text
    for name in ("seed0", "seed1"):  # checkpoint by checkpoint
        figures = entries[pooled]["checkpoints"][str(runs[name])]
        scored = json.loads((runs[name] / "heldout" / "summary.json").read_text())["systems"][0]
        assert figures["exact_match"] == scored["exact_match"] and figures["start_accuracy"] == scored["start_accuracy"]


def test_a_row_tells_its_run_by_the_path_or_by_where_its_results_lie(runs, tmp_path):
    moved = [shutil.copytree(runs[name] / "heldout", tmp_path / name) for name in ("seed0", "seed1")]
    labels = [
        row["label"] for row in pool([read_results(str(folder)) for folder in moved], 10, 0)["rows_of_the_report"]
    ]
    assert f"{runs['seed0']} and 1 more, fsm" in labels
    for folder in moved:  # scored where nobody finds it again
        text = (folder / "cases.jsonl").read_text() + "\0" + (folder / "summary.json").read_text()
        cases, summary = text.replace(str(runs["seed0"].parent), "elsewhere").split("\0")
        (folder / "cases.jsonl").write_text(cases)
        (folder / "summary.json").write_text(summary)
    done = command("eval/report.py", *moved, f"out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    assert "elsewhere/seed0, fsm" in done.stdout and "elsewhere/seed1, fsm" in done.stdout
    assert done.stdout.count("its run is not found") == 3  # with monotone
    with_runs = [shutil.copytree(folder, tmp_path / "runs" / folder.name / "heldout") for folder in moved]
    for folder in with_runs:
        for file in ("config.yaml", "data.json"):
            shutil.copy(runs[folder.parent.name] / file, folder.parent / file)
    labels = [
        row["label"] for row in pool([read_results(str(f.parent)) for f in with_runs], 10, 0)["rows_of_the_report"]
    ]
    assert "elsewhere/seed0 and 1 more, fsm" in labels


def test_the_same_seed_twice_does_not_pool(runs, tmp_path):
    copy = shutil.copytree(runs["seed0"] / "heldout", tmp_path / "copy")
    message = refused("eval/report.py", runs["seed0"], copy, f"out={tmp_path / 'out'}")
    assert "same settings and seed 0" in message and str(copy) in message
    assert "given twice" in refused("eval/report.py", runs["seed0"], runs["seed0"] / "heldout")
    assert not (tmp_path / "out").exists()


# --- folders made by hand ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def template(runs) -> tuple[dict, dict]:
    """A real case row and a real summary, to change."""
    folder = runs["seed1"] / "heldout"
    return json.loads((folder / "cases.jsonl").read_text().splitlines()[0]), json.loads(
        (folder / "summary.json").read_text()
    )


@pytest.fixture
def results(template, tmp_path):
    """Write a result folder: by seed, whether each case is exact. Case i has i % 3 copies, i // 5 is its corpus."""

    def write(name: str, exact: dict[int, str], rows: str = "r" * 64, copies: int = 3, **settings) -> Path:
        row, summary = template
        folder = tmp_path / name
        folder.mkdir()
        cases = []
        for seed, flags in exact.items():
            for i, flag in enumerate(flags):
                right = flag == "1"
                oracle = i % copies
                cases.append(
                    row
                    | {"id": f"case{i}", "corpus": f"corpus{i // 5}", "checkpoint": f"{name}{seed}", "seed": seed}
                    | {"identity": f"{name}{seed}", "exact": right, "copies_oracle": oracle}
                    | {"copies_starts": oracle if right else 0, "copies_ends": 0, "document_sha256": f"d{i}"}
                    | {"outcome": "exact_match" if right else "both_off", "changed_outside": 0 if right else i}
                )
        first = [case for case in cases if case["seed"] == next(iter(exact))]
        identity = [
            {key: value for key, value in case.items() if key not in ("forwards", "confidence")}
            | {"label": "identity (document unchanged)", "checkpoint": "-", "seed": None, "exact": False}
            for case in first
        ]
        decoding = {key: value for key, value in summary["settings"].items() if key != "batch_size"}
        decoding |= {"rows": rows} | settings
        made = summary | {
            "checkpoints": [{"name": f"{name}{seed}", "seed": seed, "training_data": "t"} for seed in exact],
            "settings": decoding | {"batch_size": 1},
            "systems": summarise(cases + identity),
        }
        (folder / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
        (folder / "summary.json").write_text(json.dumps(made))
        (folder / "settings.json").write_text(json.dumps(decoding))
        return folder

    return write


def compared(a: Path, b: Path, resamples: int = 400) -> dict[str, dict]:
    systems = [choose_system(read_results(str(folder)), None) for folder in (a, b)]
    return {entry["corpus"]: entry for entry in compare(*systems, resamples, 0)}


def test_counts_differences_and_p_are_those_of_the_table(results):
    a, b = results("a", {0: "1100011111"}), results("b", {0: "0010000000"})
    entries = compared(a, b)
    assert list(entries) == ["corpus0", "corpus1", "all"]
    assert entries["corpus0"]["pairs"] == {"both": 0, "only_A": 2, "only_B": 1, "neither": 2}
    assert entries["corpus1"]["pairs"] == {"both": 0, "only_A": 5, "only_B": 0, "neither": 0}
    assert entries["corpus1"]["p"] == 2 / 2**5
    assert entries["all"]["p"] == pytest.approx(2 * (1 + 8) / 2**8)
    assert entries["all"]["exact_match"]["difference"] == pytest.approx(-0.6)
    low, high = entries["all"]["exact_match"]["bootstrap95"]
    assert -1 <= low < -0.6 < high < 0
    assert entries["corpus1"]["exact_match"]["bootstrap95"] == (-1.0, -1.0)
    # Cases 0 to 9 have 0, 1, 2, 0, 1, 2, 0, 1, 2 and 0 copies.
    assert entries["all"]["start_accuracy"]["A"] == {"k": 6, "n": 9, "rate": 6 / 9}
    assert entries["all"]["start_accuracy"]["B"] == {"k": 2, "n": 9, "rate": 2 / 9}
    assert entries["all"]["parsed"]["B"] == {"k": 10, "n": 10, "rate": 1.0}
    # Where an edit is not exact, as many lines as its number.
    assert entries["all"]["changed_outside"]["A"] == {"k": 9, "n": 10, "rate": 0.9}
    assert entries["all"]["changed_outside"]["difference"] == pytest.approx((45 - 2 - 9) / 10)
    assert entries["all"]["tests_passed"]["difference"] is None


def test_tests_that_ran_are_compared_and_edits_without_a_document_change_nothing(results):
    a, b = results("a", {0: "10"}), results("b", {0: "11"})
    for folder, ended in ((a, ("passed", "failed")), (b, ("passed", "passed"))):
        rows = [json.loads(line) for line in (folder / "cases.jsonl").open()]
        for row, outcome in zip(rows, ended, strict=True):
            row["tests"] = {"outcome": outcome, "detail": ""}
        if folder == a:
            rows[1]["changed_outside"] = None
        (folder / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    entry = compared(a, b)["corpus0"]
    assert (entry["tests_passed"]["A"]["k"], entry["tests_passed"]["B"]["k"]) == (1, 2)
    assert entry["tests_passed"]["difference"] == 0.5
    assert entry["changed_outside"]["A"] == {"k": 0, "n": 1, "rate": 0.0}
    assert "| corpus0 | tests passed" in command("eval/compare.py", a, b).stdout


def test_the_same_cases_out_of_different_oracles_are_compared_and_it_is_said(results):
    a, b = results("a", {0: "10"}), results("b", {0: "11"})
    summary = json.loads((b / "summary.json").read_text())
    summary["data"]["fingerprint"] = "o" * 64
    (b / "summary.json").write_text(json.dumps(summary))
    done = command("eval/compare.py", a, b)
    assert done.returncode == 0, done.stderr
    assert "the same cases, out of different oracles" in done.stdout and "o" * 16 in done.stdout


def test_a_system_against_itself_differs_by_nothing_and_sides_mirror(results):
    a, b = results("a", {0: "11000111", 1: "01000110"}), results("b", {0: "00110000", 1: "10110001"})
    for entry in compared(a, a).values():
        assert entry["p"] == 1.0
        for key in ("exact_match", "start_accuracy", "end_accuracy", "parsed"):
            assert entry[key]["difference"] == 0 and entry[key]["bootstrap95"] == (0.0, 0.0)
    for there, back in zip(compared(a, b).values(), compared(b, a).values(), strict=True):
        assert there["p"] == back["p"]
        assert there["pairs"]["only_A"] == back["pairs"]["only_B"]
        for key in ("exact_match", "start_accuracy"):
            low, high = there[key]["bootstrap95"]
            assert back[key]["bootstrap95"] == (-high, -low)
            assert there[key]["difference"] == -back[key]["difference"]


def test_seeds_are_paired_with_their_like_and_stay_with_their_case(results, tmp_path):
    one = compared(results("a1", {0: "11110"}), results("b1", {0: "00001"}))["corpus0"]
    a, b = results("a3", {0: "11110", 1: "11110", 2: "11110"}), results("b3", {2: "00001", 0: "00001", 1: "00001"})
    three = compared(a, b)["corpus0"]
    assert three["pairs"] == {key: 3 * count for key, count in one["pairs"].items()}
    assert three["exact_match"]["A"]["n"] == 15
    assert (three["p"], three["exact_match"]["bootstrap95"]) == (one["p"], one["exact_match"]["bootstrap95"])
    done = command("eval/compare.py", a, b)
    assert "paired by seed" in done.stdout and "overstate" in done.stdout
    # Different seeds: every attempt of A beside every one of B.
    uneven = compared(a, results("b2", {0: "00001", 7: "10001"}))["corpus0"]
    assert uneven["pairs"] == {"both": 3, "only_A": 21, "only_B": 6, "neither": 0}


def test_oracles_without_copies_have_no_endpoints(results):
    done = command("eval/compare.py", results("a", {0: "10"}, copies=1), results("b", {0: "11"}, copies=1))
    assert done.returncode == 0, done.stderr
    [start] = [line for line in done.stdout.splitlines() if "| start " in line]
    assert start.count("no data") == 3


def test_samples_without_copies_are_counted(results):
    done = command("eval/compare.py", results("a", {0: "10"}), results("b", {0: "11"}))
    assert done.returncode == 0, done.stderr
    assert "samples drew nothing to be right" in done.stdout


def test_pooling_gives_counts_spread_and_an_interval_over_cases(results, runs, tmp_path):
    flags = {0: "1100000000", 1: "1110000000", 2: "1000000000"}
    folders = [results(f"pilot{seed}", {seed: text}) for seed, text in flags.items()]
    for seed, folder in enumerate(folders):  # each the results of a run with this seed
        run = tmp_path / "runs" / folder.name
        shutil.copytree(folder, run / "heldout")
        text = (runs["seed0"] / "config.yaml").read_text()
        (run / "config.yaml").write_text(text.replace("\nseed: 0\n", f"\nseed: {seed}\n"))
        (run / "data.json").write_text("{}")
    done = command("eval/report.py", *sorted((tmp_path / "runs").iterdir()), f"out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    systems = json.loads((tmp_path / "out" / "report.json").read_text())["systems"]
    [entry] = [entry for entry in systems if entry["label"] == "pilot00 and 2 more, fsm" and entry["corpus"] == "all"]
    assert (entry["exact_match"]["k"], entry["exact_match"]["n"]) == (6, 30)
    spread = entry["over_seeds"]
    assert spread["exact_match"] == {"mean": pytest.approx(0.2), "sd": pytest.approx(0.1)}
    starts = [1 / 9, 3 / 9, 0]  # cases 0, 1 and 2 have 0, 1 and 2 of the 9 copies
    assert spread["start_accuracy"]["mean"] == pytest.approx(statistics.mean(starts))
    assert spread["start_accuracy"]["sd"] == pytest.approx(statistics.stdev(starts))
    assert entry["outcomes"]["exact_match"] == 6 and entry["outcomes"]["both_off"] == 24
    # Attempts on a case are nearly alike, so cases as a whole leave more open than Wilson's interval over attempts.
    low, high = spread["exact_match_bootstrap95"]
    wilson = entry["exact_match"]["wilson95"]
    assert low < wilson[0] < 0.2 < wilson[1] < high
    text = (tmp_path / "out" / "report.md").read_text()
    assert "20.0% ± 10.0%" in text and "24 (80.0%)" in text and "6/30 = 20.0%" in text


def test_decoding_that_differs_is_said_and_does_not_pool(results):
    a, b = results("a", {0: "10"}), results("b", {1: "11"}, temperature=0.5)
    assert "decoded differently: temperature 0.0 and 0.5" in command("eval/compare.py", a, b).stdout
    rows = pool([read_results(str(a)), read_results(str(b))], 10, 0)["rows_of_the_report"]
    assert [row["label"] for row in rows] == ["a0, fsm, temperature=0.0", "b1, fsm, temperature=0.5"]


def test_rows_of_a_model_that_was_trained_anew_are_left_out_and_counted(results):
    a, b = results("a", {0: "11111"}), results("b", {0: "00000"})
    stale = [json.loads(line) | {"identity": "old", "exact": False} for line in (a / "cases.jsonl").open()]
    with (a / "cases.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in stale)
    assert compared(a, b)["corpus0"]["exact_match"]["A"]["k"] == 5
    assert "5 rows of A's folder are of earlier models" in command("eval/compare.py", a, b).stdout


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["compare", "report"])
def test_different_data_is_refused_with_both_fingerprints(results, tmp_path, script):
    a, b = results("a", {0: "10"}), results("b", {0: "111"}, rows="s" * 64)
    message = refused(f"eval/{script}.py", a, b, f"out={tmp_path / 'out'}")
    assert "r" * 16 in message and "s" * 16 in message and "share 2 of 2 and 3 case ids" in message


@pytest.mark.parametrize("script", ["compare", "report"])
def test_missing_cases_are_refused_with_their_number(results, tmp_path, script):
    a, b = results("a", {0: "1010"}), results("b", {0: "1110"})
    lines = (b / "cases.jsonl").read_text().splitlines(keepends=True)
    (b / "cases.jsonl").write_text(lines[0])
    message = refused(f"eval/{script}.py", a, b, f"out={tmp_path / 'out'}")
    assert "holds 1 of the 4 cases" in message and "3 are missing" in message and str(b) in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "other"}, "1 of 4 are missing in the second, 1 of 4 in the first"),
        ({"document_sha256": "x"}, "document_sha256 differs in 1 of 4 cases"),
        ({"gold_sha256": "x"}, "gold_sha256 differs in 1 of 4 cases"),
        ({"instruction_sha256": "x"}, "instruction_sha256 differs in 1 of 4 cases"),
        ({"exact": "yes"}, "row 1: exact is 'yes', not bool"),
        ({"confidence": None}, "row 1: confidence is None, not float"),
        ({"seed": "one"}, "row 1: seed is 'one', not int or null"),
        ({"id": "case1"}, "holds 3 of the 4 cases"),
    ],
)
def test_rows_of_other_cases_or_damaged_ones_are_refused(results, change, message):
    a, b = results("a", {0: "1010"}), results("b", {0: "1110"})
    rows = [json.loads(line) for line in (b / "cases.jsonl").open()]
    (b / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [rows[0] | change, *rows[1:]]))
    with pytest.raises(UserError, match=message):
        compared(a, b)
    with pytest.raises(UserError, match=message):
        pool([read_results(str(a)), read_results(str(b))], 10, 0)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("summary.json", "{", "summary.json is damaged"),
        ("summary.json", None, "summary.json is missing"),
        ("summary.json", "[]", "is not a summary that eval/heldout.py writes"),
        ("summary.json", '{"checkpoints": [], "base": null, "systems": [{}]}', "is not a summary"),
        ("settings.json", None, "settings.json is missing"),
        ("settings.json", '{"temperature": 1}', "is being scored with other settings"),
        ("cases.jsonl", '{"id": ', "cases.jsonl, row 1: not JSON"),
        ("cases.jsonl", None, "is no result folder"),
        ("cases.jsonl", "", "lacks the cases of 'checkpoint, fsm'"),
    ],
)
def test_a_damaged_folder_is_refused_in_a_line(results, file, text, message):
    folder = results("a", {0: "10"})
    if text is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        compared(folder, folder)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError):
        pool([read_results(str(folder))], 10, 0)


def test_mistakes_on_the_command_line_are_told(runs, tmp_path):
    assert f"there is no folder {tmp_path / 'nowhere'}" in refused("eval/compare.py", tmp_path / "nowhere", tmp_path)
    assert "is no result folder" in refused("eval/report.py", tmp_path)
    (tmp_path / "config.yaml").touch()
    assert "a run that was not scored" in refused("eval/report.py", tmp_path)
    assert "name two folders, A and B (one may be both): 1 given" in refused("eval/compare.py", runs["seed0"])
    assert "missing folders" in refused("eval/compare.py")
    assert "missing runs" in refused("eval/report.py", "seed=1")
    assert "unknown key 'sed'" in refused("eval/report.py", runs["seed0"], "sed=1")
    message = refused("eval/compare.py", runs["seed0"], runs["seed0"], "systems=[fsm,full]")
    assert "no system 'full'" in message and "'checkpoint, monotone'" in message


@pytest.mark.parametrize(
    "argv",
    [
        ["A", "B", "seed=3"],
        ["seed=3", "A", "B"],
        ["--seed", "3", "A", "B"],
        ["A", "--seed=3", "B"],
        ["--folders", "A", "B", "seed=3"],
    ],
)
def test_words_are_folders_wherever_they_stand(argv):
    from decoding.commandline import parse_config

    assert parse_config(Config, words_to_key(argv, "folders", Config)) == Config(folders=["A", "B"], seed=3)
