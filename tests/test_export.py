"""Exporting a run: merged outputs are the adapter's, the folder is whole and names no path, the card says what was."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import ModelCard
from huggingface_hub.errors import LocalTokenNotFoundError
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from small_models import byte_level_tokenizer, save_model

from cad_train import export
from cad_train.config import TrainConfig
from cad_train.export import export_run, find_trained, portable_command, portable_name
from cad_train.sft import train_selector
from data_prep.build import OracleConfig
from data_prep.prepared import read_split
from data_prep.probeedit import ProbeEditConfig
from decoding.commandline import UserError
from decoding.decoder import EditRequest, SpliceDecoder
from decoding.loading import COMPLETED, load_encoder, load_model, load_tokenizer
from eval.checkpoints import find_checkpoint
from eval.scoring import ScoreConfig, score_checkpoints
from recipes.export import Config, main

ROOT = Path(__file__).resolve().parent.parent
ADAPTERS = {
    "lora": {"adapter": "lora"},
    "dora": {"adapter": "lora", "dora": True},
    "rslora": {"adapter": "lora", "rslora": True},
    "qlora": {"adapter": "qlora"},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    """Return a function that trains a tiny run once, hard enough that its outputs are not the base's."""
    work = tmp_path_factory.mktemp("machine")
    model = save_model(work / "tiny-base", "qwen2")
    (model / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A base\n")
    runs = {"full": {}, **ADAPTERS}

    def run(kind: str) -> Path:
        if kind == "qlora":
            pytest.importorskip("bitsandbytes")
        out = work / f"run-{kind}"
        if not out.exists():
            small = ProbeEditConfig(cases=10, min_lines=4, max_lines=6)
            config = TrainConfig(
                data=OracleConfig(corpora=["probeedit"], out=str(work / "oracles"), probeedit=small),
                model=str(model),
                splice="full",
                max_length=2048,
                lr=2e-2,
                warmup=0.0,
                max_steps=4,
                batch_size=2,
                activation_checkpointing=False,
                precision="fp32",
                out=str(out),
                save="steps",
                save_steps=2,
                keep_checkpoints=2,
            )
            train_selector(replace(config, **runs[kind]), "sft_combined")
        return out

    return run


def exported(ckpt: Path, out: Path, **settings) -> Path:
    return export_run(str(ckpt), out, announce=lambda _: None, **settings)


def heldout_requests(run: Path) -> list[EditRequest]:
    rows = read_split(run.parent / "oracles", ["probeedit"], "heldout")
    return [EditRequest(row.instruction, row.before) for row in rows]


def decoded(model, tokenizer, run: Path) -> list[list[int]]:
    decoder = SpliceDecoder(model, tokenizer, splice="full", max_tokens=48)
    return [edit.ids for edit in decoder.decode(heldout_requests(run))]


# --- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ADAPTERS)
def test_a_merged_adapter_decodes_to_the_ids_of_base_and_adapter(kind, trained, tmp_path):
    from peft import PeftModel

    run = trained(kind)
    out = exported(run, tmp_path / "out", dtype="float32")
    tokenizer = load_tokenizer(str(out))
    base = load_model(str(run.parent / "tiny-base"), dtype=torch.float32, device="cpu")
    untrained = decoded(base, tokenizer, run)
    adapted = PeftModel.from_pretrained(base, str(run / "final")).eval()
    unmerged = decoded(adapted.get_base_model(), tokenizer, run)
    assert unmerged != untrained  # else the test would not see a merge that does nothing
    merged = load_model(str(out), dtype=torch.float32, device="cpu")
    assert not hasattr(merged, "peft_config")
    assert decoded(merged, tokenizer, run) == unmerged


@pytest.mark.parametrize("kind", ["lora", "qlora"])
def test_a_merge_is_in_bfloat16_rounded_once_and_never_in_four_bits(kind, trained, tmp_path):
    run = trained(kind)
    said = []
    out = export_run(str(run), tmp_path / "half", announce=said.append)
    single = exported(run, tmp_path / "single", dtype="float32")
    half, exact = (load_file(folder / "model.safetensors") for folder in (out, single))
    assert half.keys() == exact.keys()
    assert all(torch.equal(half[name], exact[name].bfloat16()) for name in half)
    assert all(weight.dtype == torch.bfloat16 for weight in half.values())
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    # What is said of the rounding is what it is: the same comparison, made here.
    find = find_trained(str(run))
    _, cases = export.check_cases(find, load_encoder(str(run / "final")))
    logits = [
        export.program_logits(load_model(str(folder), dtype=torch.float32, device="cpu"), cases)
        for folder in (single, out)
    ]
    found = export.agreement(*logits)
    assert 0 < found.largest < 0.1 * found.scale
    assert f"{found.same} of {found.choices} greedy choices the same" in said[1] and "bfloat16" in said[1]
    assert said[1].split(": ", 1)[1] in (out / "README.md").read_text()


def test_a_whole_model_is_exported_as_it_was_saved(trained, tmp_path):
    run = trained("full")
    out = exported(run, tmp_path / "out", dtype="float32")
    saved, written = (load_file(folder / "model.safetensors") for folder in (run / "final", out))
    assert saved.keys() == written.keys() and all(torch.equal(saved[name], written[name]) for name in saved)
    assert (run / "final" / "training_args.bin").exists()
    assert not list(out.glob("*.bin")) and not list(out.glob("*.p*"))
    assert json.loads((out / "config.json").read_text())["use_cache"] is True
    tokenizer = load_tokenizer(str(out))
    assert tokenizer.chat_template == load_tokenizer(str(run / "final")).chat_template
    generation = json.loads((out / "generation_config.json").read_text())
    assert tokenizer.eos_token_id in generation["eos_token_id"]
    assert generation["pad_token_id"] not in generation["eos_token_id"]


def test_a_checkpoint_is_exported_by_name_with_its_own_steps(trained, tmp_path):
    run = trained("full")
    out = exported(run / "checkpoint-2", tmp_path / "out", dtype="float32")
    saved, written = (load_file(folder / "model.safetensors") for folder in (run / "checkpoint-2", out))
    assert all(torch.equal(saved[name], written[name]) for name in saved)
    assert "optimiser steps: 2 (checkpoint-2 of the run)" in (out / "README.md").read_text()


def test_an_adapter_alone_is_a_copy_that_names_its_base_without_a_path(trained, tmp_path):
    run = trained("lora")
    out = exported(run, tmp_path / "out", merge=False)
    weights = "adapter_model.safetensors"
    assert (out / weights).read_bytes() == (run / "final" / weights).read_bytes()
    assert json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"] == "tiny-base"
    assert not (out / "model.safetensors").exists()
    base = str(run.parent / "tiny-base")
    ids = [
        decoded(load_model(str(folder), base=base, device="cpu"), load_tokenizer(str(folder)), run)
        for folder in (out, run / "final")
    ]
    assert ids[0] == ids[1]
    assert ModelCard.load(out / "README.md").data.library_name == "peft"


def test_a_quantised_base_is_refused(trained, tmp_path):
    run = trained("qlora")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    stored = tmp_path / "base-4bit"
    shutil.copytree(run.parent / "tiny-base", stored)
    quantised = AutoModelForCausalLM.from_pretrained(stored, quantization_config=BitsAndBytesConfig(load_in_4bit=True))
    (stored / "model.safetensors").unlink()
    quantised.save_pretrained(stored)
    with pytest.raises(UserError, match="base-4bit is stored quantised"):
        exported(run, tmp_path / "out", base=str(stored))
    assert not (tmp_path / "out").exists()


def test_an_adapter_on_a_base_of_other_depth_is_refused(trained, tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    run = trained("lora")
    config = AutoConfig.from_pretrained(run.parent / "tiny-base", num_hidden_layers=1, layer_types=["full_attention"])
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "shallow")
    with pytest.raises(UserError, match=r"the adapter in .* has other layers than .*shallow"):
        exported(run, tmp_path / "out", base=str(tmp_path / "shallow"))


# --- a folder that is whole or not there ------------------------------------------------------------------------------


def test_outputs_that_differ_stop_the_export_with_nothing_left(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained("lora"), run)
    weights = load_file(run / "final" / "adapter_model.safetensors")
    first = next(iter(weights))
    weights[first] = torch.full_like(weights[first], float("nan"))
    save_file(weights, run / "final" / "adapter_model.safetensors", metadata={"format": "pt"})
    (run / "final" / COMPLETED).unlink()  # as earlier versions left it; otherwise the change is seen at once
    with pytest.raises(UserError, match="the merged model gives other outputs than the run's"):
        exported(run, tmp_path / "place" / "out")
    assert list((tmp_path / "place").iterdir()) == []


def test_the_comparison_sees_another_model(trained, tmp_path):
    one, other = (find_trained(str(trained(kind))) for kind in ("full", "lora"))
    split, cases = export.check_cases(one, load_encoder(str(one.folder)))
    assert split == "heldout" and len(cases) == 2
    logits = [
        export.program_logits(load_model(str(found.folder), dtype=torch.float32, device="cpu"), cases)
        for found in (one, other)
    ]
    assert export.agreement(logits[0], logits[0]).largest == 0
    with pytest.raises(UserError, match="gives other outputs"):
        export.check_exact(export.agreement(*logits), "merged")


def killed_when_written(run: Path, out: Path) -> None:
    torch.set_num_threads(1)
    export_run(str(run), out, announce=lambda text: text.startswith("written") and os.kill(os.getpid(), signal.SIGKILL))


def test_a_killed_export_leaves_no_folder_under_its_name(trained, tmp_path):
    run = trained("full")
    child = multiprocessing.get_context("fork").Process(target=killed_when_written, args=(run, tmp_path / "out"))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert [path.suffix for path in tmp_path.iterdir()] == [".part"]  # and its weights are in it
    assert (next(tmp_path.iterdir()) / "model.safetensors").exists()
    exported(run, tmp_path / "out")  # the same command goes through


def test_an_interrupted_export_leaves_nothing(trained, tmp_path):
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_run(str(trained("full")), tmp_path / "out", announce=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_is_refused_by_name(trained, tmp_path):
    run = trained("full")
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("keep me")
    for taken in (out, out / "mine.txt"):
        with pytest.raises(UserError, match=re.escape(f"out={taken} exists")):
            exported(run, taken)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    with pytest.raises(UserError, match="merge=false, but .* is a whole model"):
        exported(run, tmp_path / "new", merge=False)
    with pytest.raises(UserError, match="tiny-base is no trained run"):
        exported(run.parent / "tiny-base", tmp_path / "new")
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "checkpoint-2" / "COMPLETED").unlink()
    (copy / "summary.json").unlink()
    with pytest.raises(UserError, match=r"checkpoint-2 is not whole \(half-written\)"):
        exported(copy / "checkpoint-2", tmp_path / "new")
    with pytest.raises(UserError, match="copy is not finished"):
        exported(copy, tmp_path / "new")
    shutil.rmtree(copy / "final")  # as SIGTERM leaves it
    with pytest.raises(UserError, match="copy is not finished: train it to its end, or name a checkpoint-N of it"):
        exported(copy, tmp_path / "new")
    (copy / "checkpoint-4" / "optimizer.pt").write_bytes(b"cut")
    with pytest.raises(UserError, match=r"checkpoint-4 is not whole \(optimizer.pt is damaged\)"):
        exported(copy / "checkpoint-4", tmp_path / "new")
    shutil.copyfile(run / "checkpoint-4" / "optimizer.pt", copy / "checkpoint-4" / "optimizer.pt")
    data = json.loads((run / "data.json").read_text())
    (copy / "data.json").write_text(json.dumps(data | {"oracles": str(tmp_path / "gone")}))
    with pytest.raises(UserError, match="the run's oracles are no longer in .*gone"):
        exported(copy / "checkpoint-4", tmp_path / "new")
    assert not (tmp_path / "new").exists()


# --- settings and card ------------------------------------------------------------------------------------------------


def test_an_exported_folder_is_scored_with_the_settings_of_its_run(trained, tmp_path):
    run = trained("full")
    out = exported(run, tmp_path / "out")
    found = find_checkpoint(str(out))
    assert (found.config.splice, found.config.style, found.config.seed) == ("full", "numbered", 0)
    assert found.run is None and found.data is None
    with pytest.raises(UserError, match="no held-out data of its own"):
        score_checkpoints(ScoreConfig(ckpt=[str(out)], out=str(tmp_path / "scored")))
    oracles = str(run.parent / "oracles")
    score_checkpoints(ScoreConfig(ckpt=[str(out)], data=oracles, limit=1, max_tokens=8, out=str(tmp_path / "scored")))
    settings = json.loads((tmp_path / "scored" / "settings.json").read_text())
    assert (settings["splice"], settings["style"]) == ("full", "numbered")


def test_the_card_is_filled_from_the_run_and_nothing_names_a_local_path(trained, tmp_path, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(trained("lora"), run)
    before = (exported(run, tmp_path / "unscored") / "README.md").read_text()
    assert "## Held-out results\n\nNot scored." in before
    monkeypatch.setattr(sys, "argv", ["eval/heldout.py", "--ckpt", str(run), f"out={run}/heldout"])
    score_checkpoints(ScoreConfig(ckpt=[str(run)], baseline=["fsm"], max_tokens=8))
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")
    out = exported(run, tmp_path / "selector")
    card = ModelCard.load(out / "README.md")
    assert card.data.to_dict() == {
        "license": "apache-2.0",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["cad-train", "text-editing", "lora"],
    }
    text = card.content
    summary = json.loads((run / "heldout" / "summary.json").read_text())
    data = json.loads((run / "data.json").read_text())
    for system in summary["systems"]:
        low, high = system["exact_match"]["wilson95"]
        cell = (
            f"{system['exact_match']['k']}/{system['n']} = {system['exact_match']['rate']:.1%} [{low:.1%}, {high:.1%}]"
        )
        assert re.search(rf"\| {re.escape(system['label'])} +\| probeedit \| {system['n']} +\| {re.escape(cell)}", text)
    losses = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first, last = (row["loss"] for row in (losses[1], losses[-1]))
    for said in (
        "python eval/heldout.py --ckpt run out=heldout",
        "- base model: tiny-base (a local copy; its source is not recorded)",
        "- licence of the base model: apache-2.0",
        f"`{data['fingerprint']}`",
        "8 examples were trained on",
        f"- training loss: {first:.4f} at step 1, {last:.4f} at step 4",
        "- optimiser steps: 4 (final of the run)",
        "has since been withdrawn",
    ):
        assert said in text, said
    assert re.search(r"\| lr +\| 0.02 ", text) and re.search(r"\| splice +\| \"full\" ", text)
    for file in out.iterdir():
        content = file.read_bytes()
        for local in (str(tmp_path), str(trained("lora").parent), str(Path.home()) + "/", str(ROOT), "hf_secret"):
            assert local.encode() not in content, (file.name, local)


def test_results_of_another_checkpoint_are_not_the_exported_ones(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained("full"), run)
    score_checkpoints(ScoreConfig(ckpt=[str(run / "checkpoint-2")], limit=1, max_tokens=8))
    told = "Not scored: the results in the run folder are of another checkpoint."
    assert told in (exported(run, tmp_path / "final") / "README.md").read_text()
    text = (exported(run / "checkpoint-2", tmp_path / "early") / "README.md").read_text()
    assert told not in text and "| checkpoint, fsm " in text


def test_a_base_on_the_hub_is_named_in_the_front_matter(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    out = exported(trained("full"), tmp_path / "out", base="owner/name")
    card = ModelCard.load(out / "README.md")
    assert card.data.base_model == "owner/name" and card.data.license is None
    assert "- base model: owner/name\n- licence of the base model: see base model" in card.content


def test_the_python_of_the_card_runs_as_it_stands(trained, tmp_path, monkeypatch, capsys):
    out = exported(trained("full"), tmp_path / "selector")
    [code] = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("mean.py").write_text("def mean(values):\n    return sum(values)\n")
    scope: dict = {}
    exec(code, scope)
    assert scope["decoder"].splice == "full" and scope["decoder"].style == "numbered"
    assert capsys.readouterr().out.startswith(f"{scope['edit'].text} {scope['edit'].confidence}")


@pytest.mark.parametrize(
    ("pad", "stops", "expected"),
    [
        ("<|endoftext|>", ["<|im_end|>", "<|endoftext|>"], ("<|endoftext|>", ["<|im_end|>"])),  # as Qwen's own
        ("<|im_end|>", ["<|im_end|>"], ("<|endoftext|>", ["<|im_end|>"])),  # padded with its end token
        (None, None, ("<|endoftext|>", ["<|im_end|>"])),
        (None, "<|endoftext|>", (None, ["<|im_end|>", "<|endoftext|>"])),  # no control token is left
        ("<|endoftext|>", "<|im_start|>", ("<|endoftext|>", ["<|im_end|>", "<|im_start|>"])),
    ],
)
def test_generation_stops_at_the_supervised_end_and_pads_with_no_stop(pad, stops, expected):
    tokenizer = copy.deepcopy(byte_level_tokenizer())
    tokenizer.add_special_tokens({"unk_token": "<|endoftext|>"})
    tokenizer.pad_token = pad
    ids = tokenizer.convert_tokens_to_ids
    generation = SimpleNamespace(eos_token_id=None if stops is None else ids(stops), pad_token_id=None)
    export.set_stop_tokens(generation, tokenizer)
    assert generation.eos_token_id == ids(expected[1])
    assert generation.pad_token_id == (ids(expected[0]) if expected[0] else None)
    assert tokenizer.pad_token == expected[0]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("/home/me/models/tiny", "tiny"),
        ("~/models/tiny/", "tiny"),
        ("../tiny.gguf", "tiny.gguf"),
        ("Qwen/Qwen2.5-Coder-1.5B-Instruct", "Qwen/Qwen2.5-Coder-1.5B-Instruct"),
        ("src/**/*.py", "src/**/*.py"),
        ("adamw", "adamw"),
    ],
)
def test_local_paths_are_reduced_to_names(text, name):
    assert portable_name(text) == name


PARTS = st.lists(st.text("abc .-_é'\"", min_size=1, max_size=6).filter(lambda s: s.strip(". ")), min_size=1, max_size=4)


@given(PARTS, st.sampled_from(["/", "~/", "~me/"]), st.sampled_from(["", "out=", "ckpt=["]))
def test_a_command_line_keeps_no_absolute_path(parts, root, key):
    import shlex

    closing = "]" if key.endswith("[") else ""
    command = shlex.join(["python", "eval/heldout.py", key + root + "/".join(parts) + closing, "limit=3"])
    words = shlex.split(portable_command(command))
    assert words == ["python", "eval/heldout.py", key + parts[-1] + closing, "limit=3"]


# --- the hub ----------------------------------------------------------------------------------------------------------


class Hub:
    """Stands in for huggingface_hub.HfApi: records what is asked of it."""

    def __init__(self, taken: bool = False, token: bool = True, broken: bool = False) -> None:
        self.taken, self.token, self.broken, self.calls = taken, token, broken, []

    def __call__(self) -> Hub:
        return self

    def repo_exists(self, repo_id):
        self.calls.append(("repo_exists", repo_id))
        return self.taken

    def whoami(self):
        if not self.token:
            raise LocalTokenNotFoundError("Token is required")
        return {"name": "me"}

    def create_repo(self, repo_id, *, private):
        self.calls.append(("create_repo", repo_id, private))
        return f"https://huggingface.co/{repo_id}"

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        if self.broken:
            raise ConnectionResetError("reset by peer")
        self.calls.append(("upload_folder", repo_id, sorted(path.name for path in Path(folder_path).iterdir())))


def test_nothing_is_pushed_unless_asked_and_then_to_a_private_repository(trained, tmp_path, monkeypatch, capsys):
    hub = Hub()
    monkeypatch.setattr("huggingface_hub.HfApi", hub)
    run = str(trained("full"))
    main(Config(run, str(tmp_path / "kept")))
    assert hub.calls == []
    main(Config(run, str(tmp_path / "pushed"), push="me/selector"))
    files = sorted(path.name for path in (tmp_path / "pushed").iterdir())
    assert hub.calls == [
        ("repo_exists", "me/selector"),
        ("create_repo", "me/selector", True),
        ("upload_folder", "me/selector", files),
    ]
    assert "pushed to https://huggingface.co/me/selector" in capsys.readouterr().out
    assert "README.md" in files and not any(name.startswith(".") for name in files)


@pytest.mark.parametrize(
    ("hub", "message"),
    [
        (Hub(taken=True), "push=me/selector exists on the hub: choose another name; nothing was exported"),
        (Hub(token=False), "no access token here: log in with `hf auth login`, or set HF_TOKEN; nothing was exported"),
    ],
)
def test_a_push_that_cannot_be_is_found_out_before_the_export(hub, message, trained, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi", hub)
    with pytest.raises(UserError, match=re.escape(message)):
        main(Config(str(trained("full")), str(tmp_path / "out"), push="me/selector"))
    assert not (tmp_path / "out").exists()


def test_a_push_that_breaks_leaves_the_folder_and_says_how_to_go_on(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi", Hub(broken=True))
    out = tmp_path / "out"
    with pytest.raises(UserError, match=re.escape(f"hf upload me/selector {out} --private")):
        main(Config(str(trained("full")), str(out), push="me/selector"))
    assert (out / "README.md").exists()


def test_mistakes_are_one_line_and_exit_code_2(trained, tmp_path):
    run, out = str(trained("full")), tmp_path / "out"
    for arguments, message in [
        (["push=me/selector"], "cannot push to me/selector: offline mode is on: unset HF_HUB_OFFLINE"),
        (["push=selector"], "push=selector: name the repository as USER/NAME"),
        (["dtype=int4"], "dtype"),
    ]:
        command = [sys.executable, "recipes/export.py", "--ckpt", run, f"out={out}", *arguments]
        env = os.environ | {"HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1 and message in done.stderr, done.stderr
    assert not out.exists()
