"""A trained run as a folder for others: weights that were checked, tokenizer, settings, and a card filled from the run.

model.safetensors, config.json    the model, or adapter_model.safetensors and adapter_config.json
generation_config.json            with the end token that training supervised
tokenizer.json, ...               with the chat template
cad_train.json                    the run's settings, which decoding must match: style and splice above all
README.md                         the model card
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cad_train.config import NOT_RESUMED, TrainConfig
from cad_train.run_folder import flat
from data_prep.prepared import OracleRow, read_split
from data_prep.rows import RowError, read_rows, write_text
from decoding.commandline import UserError, from_yaml
from decoding.console import markdown_table
from decoding.loading import (
    EXPORTED_SETTINGS,
    checkpoint_fault,
    checkpoint_step,
    find_model,
    load_encoder,
    load_model,
    local_name,
    stated_fault,
)

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

    from decoding.encoder import ProgramEncoder

_CHECKED = 4  # edits on which outputs are compared
_TOLERANCE = 1e-3  # of the largest logit; float32 rounding stays below 1e-5, a wrong merge is of the order of 1


@dataclass(frozen=True)
class TrainedModel:
    """What a run left in ``folder``, its final model or a checkpoint: the weights after ``steps`` optimiser steps."""

    folder: Path
    run: Path
    config: TrainConfig
    data: dict[str, Any]
    steps: int

    @property
    def is_adapter(self) -> bool:
        """Whether the folder holds an adapter without its base."""
        return (self.folder / "adapter_config.json").is_file()


@dataclass(frozen=True)
class Agreement:
    """How two models agree on where they choose program tokens, given the right ones before.

    ``largest`` is the largest absolute difference of logits, ``scale`` the largest absolute logit, ``same`` counts the
    positions of ``choices`` at which both would greedily choose the same token of the whole vocabulary.
    """

    edits: int
    choices: int
    largest: float
    scale: float
    same: int

    def __str__(self) -> str:
        return (
            f"largest difference of logits {self.largest:.3g} (largest logit {self.scale:.3g}), "
            f"{self.same} of {self.choices} greedy choices the same, on {self.edits} edits"
        )


@dataclass(frozen=True)
class Checks:
    """What was compared with the run's own outputs, all in float32 arithmetic.

    ``merge`` is the merged model before rounding (None where nothing was merged); ``written`` the folder, read back.
    """

    split: str
    merge: Agreement | None
    written: Agreement


def export_run(
    ckpt: str,
    out: Path,
    *,
    merge: bool = True,
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
    base: str | None = None,
    announce: Callable[[str], None] = print,
) -> Path:
    """Write the model that ``ckpt`` names to the new folder ``out``, which appears whole or not at all.

    Everything is computed in float32 on the CPU, 4 bytes a parameter, and rounded to ``dtype`` once. An adapter is
    merged into its base as that is stored, never into a 4-bit copy; logits on a few of the run's held-out edits,
    merged and not, must then agree.

    Args:
        ckpt: a run folder, its ``final``, or a ``checkpoint-N`` of it.
        merge: False writes an adapter alone, as it was saved.
        base: the base model, to merge into and to name in the card; default the run's.

    Raises:
        UserError: no such run, an ``out`` that is in use, a base that cannot be read or is quantised, a failed check.
    """
    trained = find_trained(ckpt)
    if base:
        trained = replace(trained, config=replace(trained.config, model=base))
    if not merge and not trained.is_adapter:
        raise UserError(f"merge=false, but {trained.folder} is a whole model, not an adapter: leave merge out")
    check_free(out)
    encoder = load_encoder(str(trained.folder))
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        if merge:
            checks = _write_model(trained, encoder, part, dtype, announce)
        else:
            checks = None
            _write_adapter(trained, part)
        _write_tokenizer(encoder.tokenizer, part)
        write_text(
            part / EXPORTED_SETTINGS, json.dumps(portable_settings(trained.config), indent=2, ensure_ascii=False) + "\n"
        )
        write_text(part / "README.md", model_card(trained, out.name, merge, dtype, checks))
        part.rename(out)
    except RowError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"cannot write {out}: {error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    announce(f"wrote {out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    return out


def find_trained(ckpt: str) -> TrainedModel:
    """Return the trained model that ``ckpt`` names, with its run.

    Raises:
        UserError: a model without a run, one that is not whole, an unfinished run of which no checkpoint is named, or
            a run that cannot be read.
    """
    model, run = find_model(ckpt)
    folder = Path(model).expanduser().resolve()
    if run is None or folder.name != "final" and not re.fullmatch(r"checkpoint-\d+", folder.name):
        raise UserError(f"{ckpt} is no trained run: name a run folder, its final, or a checkpoint-N of it")
    config = from_yaml(TrainConfig, run / "config.yaml")
    data = _read_json(run / "data.json")
    if folder.name == "final" or Path(ckpt).expanduser().resolve() != folder:
        if folder.name != "final" or not (run / "summary.json").is_file():
            raise UserError(f"{run} is not finished: train it to its end, or name a checkpoint-N of it")
        summary = _read_json(run / "summary.json")
        if fault := stated_fault(folder):
            raise UserError(f"{folder} is not whole ({fault}): train the run again from its last checkpoint")
        return TrainedModel(folder, run, config, data, summary.get("best_step") or summary["steps"])
    if fault := checkpoint_fault(folder):
        raise UserError(f"{folder} is not whole ({fault}): name another checkpoint")
    return TrainedModel(folder, run, config, data, checkpoint_step(folder))


def check_free(out: Path) -> None:
    """Refuse an ``out`` that has something in it: nothing is ever overwritten.

    Raises:
        UserError: ``out`` is a file or a folder that is not empty.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"out={out} exists: name a new folder, or remove it")


# --- weights ----------------------------------------------------------------------------------------------------------


def _write_model(trained: TrainedModel, encoder: ProgramEncoder, part: Path, dtype: str, announce) -> Checks:
    import torch

    split, cases = check_cases(trained, encoder)
    merged = None
    if trained.is_adapter:
        model, reference, merged = _merge(trained, cases)
        announce(f"merged, in float32: {merged}")
    else:
        model = load_model(str(trained.folder), dtype=torch.float32, device="cpu")
        reference = program_logits(model, cases)
    model.to(getattr(torch, dtype))
    model.config.use_cache = True  # training turns it off
    set_stop_tokens(model.generation_config, encoder.tokenizer)
    for name in ("eos_token_id", "pad_token_id"):
        setattr(model.config, name, getattr(model.generation_config, name))
    model.save_pretrained(part)
    del model  # of two in float32 one has to go
    written = agreement(reference, program_logits(load_model(str(part), dtype=torch.float32, device="cpu"), cases))
    announce(f"written in {dtype}, read back: {written}")
    check_exact(written, "written", finite_only=dtype != "float32")
    return Checks(split, merged, written)


def _merge(trained: TrainedModel, cases) -> tuple[PreTrainedModel, list[torch.Tensor], Agreement]:
    """Return the merged model, the logits of base and adapter unmerged, and how the two agree."""
    import torch
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import SafetensorError, safe_open

    base = trained.config.model
    model = load_model(base, dtype=torch.float32, device="cpu")
    if getattr(model, "is_quantized", False):
        raise UserError(f"{base} is stored quantised, and merging would round again: give the full weights with base=")
    try:
        adapted = PeftModel.from_pretrained(model, str(trained.folder)).eval()
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise UserError(f"the adapter in {trained.folder} does not fit {base}: {str(error).splitlines()[0]}") from None
    # Weights for which the base has no place, or places without weights, are otherwise no more than a warning.
    with safe_open(trained.folder / "adapter_model.safetensors", "pt") as saved:
        if set(saved.keys()) != set(get_peft_model_state_dict(adapted)):
            raise UserError(
                f"the adapter in {trained.folder} has other layers than {base}: give its own base with base="
            )
    reference = program_logits(adapted, cases)
    model = adapted.merge_and_unload()
    merged = agreement(reference, program_logits(model, cases))
    check_exact(merged, "merged")
    return model, reference, merged


def check_exact(found: Agreement, what: str, finite_only: bool = False) -> None:
    """Stop at outputs that differ by more than float32 rounding, or with ``finite_only`` at those that are no number.

    Raises:
        UserError: with the figures.
    """
    bound = float("inf") if finite_only else _TOLERANCE * max(found.scale, 1.0)
    if not found.largest < bound:  # not a number is below nothing
        raise UserError(f"the {what} model gives other outputs than the run's: {found}; nothing is exported")


def check_cases(trained: TrainedModel, encoder: ProgramEncoder) -> tuple[str, list[tuple[list[int], list[int]]]]:
    """Return the split and a few of its edits, as ``cad_train.examples.encode_row`` gives them, the corpora in turn.

    Held-out edits, or training edits where the run held none out.

    Raises:
        UserError: the run's oracles are not where they were, or none of them can be used.
    """
    from cad_train.examples import encode_row
    from decoding.tokens import TokenizerError

    config, oracles = trained.config, Path(trained.data["oracles"])
    if not (oracles / "manifest.json").is_file():
        raise UserError(
            f"the run's oracles are no longer in {oracles}, and outputs are compared on them: build them there again "
            "with data_prep/build_oracles.py"
        )
    for split in ("heldout", "train"):
        cases = []
        queues = [read_split(oracles, [name], split) for name in config.data.corpora]
        rows: list[OracleRow] = [row for row in chain.from_iterable(zip_longest(*queues)) if row is not None]
        for row in rows:
            try:
                case = encode_row(encoder, row, config.style, config.splice)
            except TokenizerError:
                continue
            if len(case[0]) <= config.max_length:
                cases.append(case)
            if len(cases) == _CHECKED:
                break
        if cases:
            return split, cases
    raise UserError(f"none of the edits in {oracles} is short enough to compare outputs on")


def program_logits(model: torch.nn.Module, cases: list[tuple[list[int], list[int]]]) -> list[torch.Tensor]:
    """Return for each case the float32 logits ``[supervised tokens, vocabulary]`` that choose its program's tokens."""
    import torch

    from cad_train.examples import UNSUPERVISED

    found = []
    with torch.inference_mode():
        for input_ids, regions in cases:
            before = [position - 1 for position, region in enumerate(regions) if region != UNSUPERVISED]
            output = model(input_ids=torch.tensor([input_ids]), use_cache=False, logits_to_keep=torch.tensor(before))
            found.append(output.logits[0].float())
    return found


def agreement(reference: list[torch.Tensor], logits: list[torch.Tensor]) -> Agreement:
    """Compare logits ``[positions, vocabulary]`` of the same edits; not-a-number makes ``largest`` not a number."""
    import torch

    one, other = torch.cat(reference), torch.cat(logits)
    return Agreement(
        edits=len(reference),
        choices=len(one),
        largest=(one - other).abs().max().item(),
        scale=one.abs().max().item(),
        same=int((one.argmax(-1) == other.argmax(-1)).sum()),
    )


def set_stop_tokens(generation: GenerationConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Make generation stop at the end token that training supervised, and pad with a token that is no stop.

    A pad id among the stop ids ends generation at once in some callers (transformers#48016). Where the tokenizer pads
    with its end token, another control token takes that place, or none.
    """
    stops = generation.eos_token_id
    stops = [] if stops is None else [stops] if isinstance(stops, int) else list(stops)
    stops = list(dict.fromkeys([tokenizer.eos_token_id, *stops]))
    pad = tokenizer.pad_token_id
    if pad is None or pad == tokenizer.eos_token_id:
        pad = next((token for token in tokenizer.all_special_ids if token not in stops), None)
    tokenizer.pad_token_id = pad
    generation.pad_token_id = pad
    generation.eos_token_id = [token for token in stops if token != pad]


def _write_adapter(trained: TrainedModel, part: Path) -> None:
    weights = trained.folder / "adapter_model.safetensors"
    if not weights.is_file():
        raise UserError(f"there is no {weights.name} in {trained.folder}")
    shutil.copyfile(weights, part / weights.name)
    settings = _read_json(trained.folder / "adapter_config.json")
    settings["base_model_name_or_path"] = portable_name(trained.config.model)
    write_text(part / "adapter_config.json", json.dumps(settings, indent=2) + "\n")


def _write_tokenizer(tokenizer: PreTrainedTokenizerBase, part: Path) -> None:
    for name in ("is_local", "local_files_only", "name_or_path"):  # how it was loaded here
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.save_pretrained(part)


# --- settings without this machine ------------------------------------------------------------------------------------


def portable_name(text: str) -> str:
    """Return the last part of a local path; a hub name, or any other text, stays as it is."""
    if text.startswith(("/", "~", "./", "../")) or text.endswith(".gguf") or "/" in text and Path(text).exists():
        return Path(text).name
    return text


def portable_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the settings of a run with local paths reduced to names, and those that mean nothing elsewhere unset."""

    def reduced(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: reduced(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [reduced(inner) for inner in value]
        return portable_name(value) if isinstance(value, str) else value

    settings = reduced(asdict(config))
    settings["out"] = settings["data"]["data_dir"] = None
    return settings


def portable_command(command: str) -> str:
    """Return a command line with absolute paths reduced to names."""
    absolute = re.compile(r"(?<![\w./~-])(?:~[^/]*)?/(?:[^,\[\]]*/)?")
    return shlex.join(absolute.sub("", word) for word in shlex.split(command))


# --- the card ---------------------------------------------------------------------------------------------------------


def model_card(trained: TrainedModel, name: str, merged: bool, dtype: str, checks: Checks | None) -> str:
    """Return the model card: front matter for the hub, and what the run recorded, nothing else.

    Args:
        name: of the exported folder.
        merged: whether the folder holds a whole model, and not an adapter alone.
        checks: what was compared while exporting; None for an adapter alone.
    """
    from huggingface_hub import ModelCardData

    config = trained.config
    base = portable_name(config.model)
    on_hub = base == config.model and base.count("/") == 1
    licence = base_licence(config.model)
    adapter = not merged
    front = ModelCardData(
        base_model=base if on_hub else None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["cad-train", "text-editing", *(["lora"] if config.adapter != "full" else [])],
        **licence,
    )
    licence_text = licence.get("license_name") or licence.get("license") or "see base model"
    load = f'load_model(folder, base="{base}")' if adapter and not on_hub else "load_model(folder)"
    base_key = f" base={base}" if adapter and not on_hub else ""
    sections = [
        f"# {name}",
        f"A span selector: it edits a document by writing a short program that copies line ranges and adds new text. "
        f"Trained with cad-train from {base}, and to be decoded with it; it is no chat model.",
        "## Use",
        f"From a checkout of cad-train, with this folder in it (from the hub: `hf download OWNER/{name} --local-dir "
        f"{name}`). The model was trained with "
        f"style={config.style} and splice={config.splice}, and must be decoded with both.",
        f"""```python
from decoding.decoder import EditRequest, SpliceDecoder
from decoding.loading import load_model, load_tokenizer

folder = "{name}"
decoder = SpliceDecoder({load}, load_tokenizer(folder), style="{config.style}", splice="{config.splice}")
[edit] = decoder.decode([EditRequest("Fix bugs in mean.", open("mean.py").read())])
print(edit.text, edit.confidence)  # text is None where a limit ended the edit early
```""",
        f"""```
python decoding/edit.py --ckpt {name}{base_key} mean.py "Fix bugs in mean."
python eval/heldout.py --ckpt {name}{base_key} data=ORACLES
```""",
        "## Base model and licence",
        f"- base model: {base}{'' if on_hub else ' (a local copy; its source is not recorded)'}\n"
        f"- licence of the base model: {licence_text}",
        "## Weights",
        _weights_text(trained, merged, dtype, checks),
        "## Training data",
        _data_text(trained),
        "## Training",
        _training_text(trained),
        "## Held-out results",
        _results_text(trained),
        "## Limits",
        f"- It learned from {trained.data['examples']} edits of up to {trained.data['lengths']['max']} tokens, prompt "
        "and program together; longer documents, and edits of other kinds, are outside of what it saw.\n"
        "- The grammar makes every program valid, not right: look at the diff, and at the confidence. Held-out results "
        "say what to expect, on edits like those only.\n"
        "- New text is generated, with the biases and errors of the base model.",
        "## The paper",
        "The method is Copy-as-Decode (arXiv 2604.18170 v1). That preprint has since been withdrawn: its numbers are "
        "claims to be measured again, and none of them is a claim about this model.",
    ]
    return f"---\n{front.to_yaml().strip()}\n---\n\n" + "\n\n".join(sections) + "\n"


def base_licence(model: str) -> dict[str, str]:
    """Return license, and license_name and license_link where given, of a model's card; nothing where not known."""
    from huggingface_hub import ModelCard

    source = local_name(model)
    card = Path(source) / "README.md"
    if Path(source).is_dir() and not card.is_file():
        return {}
    try:
        data = ModelCard.load(str(card) if card.is_file() else source, ignore_metadata_errors=True).data.to_dict()
    except Exception:  # no card or no network, which the hub's client tells in errors of several libraries
        return {}
    found = {key: data[key] for key in ("license", "license_name", "license_link") if isinstance(data.get(key), str)}
    return found if "license" in found else {}


def _weights_text(trained: TrainedModel, merged: bool, dtype: str, checks: Checks | None) -> str:
    if not merged:
        return "A LoRA adapter alone, as the run saved it; it needs its base model."
    on = f"on {'held-out' if checks.split == 'heldout' else 'training'} edits of the run, in float32 arithmetic"
    lines = [f"- {dtype}, safetensors"]
    if checks.merge:
        lines += [
            "- an adapter merged into its base model; outputs against base and adapter apart, "
            f"{on}, before rounding: {checks.merge}"
        ]
        if trained.config.adapter == "qlora":
            lines += ["- trained over a 4-bit copy of the base, merged into the base itself: not the same function"]
    reference = "base and adapter apart" if checks.merge else "the weights as trained"
    lines += [f"- this folder against {reference}, {on}: {checks.written}"]
    return "\n".join(lines)


def _data_text(trained: TrainedModel) -> str:
    data = trained.data
    columns = ["corpus", "offered", "rejected", "left out by limit", "train", "held out"]
    rows = [
        [name, c["offered"], sum(c["rejected"].values()), c["over_limit"], c["train"], c["heldout"]]
        for name, c in data["corpora"].items()
    ]
    refused = ", ".join(f"{count} {reason}" for reason, count in data["refused"].items()) or "none"
    return (
        f"{markdown_table(columns, rows)}\n\n"
        f"{data['examples']} examples were trained on ({data['tokens']} tokens, {data['supervised_tokens']} of them "
        f"supervised); left out in encoding: {refused}. Fingerprint of the data: `{data['fingerprint']}`."
    )


def _training_text(trained: TrainedModel) -> str:
    path = trained.run / "metrics.jsonl"
    metrics = [row for row in read_rows(path) if row["step"] <= trained.steps] if path.is_file() else []
    lines = [f"- optimiser steps: {trained.steps} ({trained.folder.name} of the run)"]
    config = trained.config
    if trained.folder.name == "final" and config.evaluation.every and config.save != "no":
        lines += [
            "- these are the weights of the evaluation with the best exact match; the run may have gone on after it"
        ]
    for key, what in (("loss", "training loss"), ("eval_nll", "held-out loss per supervised token")):
        logged = [(row["step"], row[key]) for row in metrics if key in row]
        if logged:
            steps = dict([logged[0], logged[-1]])
            lines += [f"- {what}: " + ", ".join(f"{value:.4f} at step {step}" for step, value in steps.items())]
    environment = _read_json(trained.run / "env.json") if (trained.run / "env.json").is_file() else {}
    versions = environment.get("versions", {})
    if versions:
        lines += [
            "- versions: " + ", ".join(f"{package} {version}" for package, version in versions.items() if version)
        ]
    settings = flat({key: value for key, value in portable_settings(config).items() if key != "data"})
    rows = [[key, json.dumps(value)] for key, value in settings.items() if key not in NOT_RESUMED]
    return "\n".join(lines) + "\n\n" + markdown_table(["setting", "value"], rows)


def _results_text(trained: TrainedModel) -> str:
    """The results of eval/heldout.py in the run folder, if they are of this very model."""
    folder = trained.run / "heldout"
    if not (folder / "summary.json").is_file() or not (folder / "cases.jsonl").is_file():
        return "Not scored."
    summary = _read_json(folder / "summary.json")
    names = [checkpoint["name"] for checkpoint in summary["checkpoints"]]
    scored = next((row["model"] for row in read_rows(folder / "cases.jsonl") if row["checkpoint"] == names[0]), "")
    if len(names) != 1 or Path(scored).name != trained.folder.name:
        return "Not scored: the results in the run folder are of another checkpoint."
    rows = []
    for system in summary["systems"]:
        k, n, rate, interval = (system["exact_match"][key] for key in ("k", "n", "rate", "wilson95"))
        shown = f"{k}/{n} = {rate:.1%} [{interval[0]:.1%}, {interval[1]:.1%}]" if n else "-"
        rows.append([system["label"], system["corpus"], n, shown])
    settings = summary["settings"]
    return (
        "Exact match of the edited document, with the Wilson interval at 95 %:\n\n"
        f"{markdown_table(['system', 'corpus', 'n', 'exact match'], rows)}\n\n"
        f"Scored before export, with style={settings['style']} splice={settings['splice']} "
        f"temperature={settings['temperature']} on the {summary['data']['split']} split, by\n\n"
        f"```\n{portable_command(summary['command'])}\n```"
    )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None


# --- the hub ----------------------------------------------------------------------------------------------------------


def check_push(repo: str) -> None:
    """Find out before the work whether ``repo`` can be pushed to: the hub answers, the token is good, the name is free.

    Raises:
        UserError: what is in the way, and what to do.
    """
    import huggingface_hub

    api = huggingface_hub.HfApi()
    try:
        taken = api.repo_exists(repo)
        api.whoami()
    except Exception as error:  # the hub's client raises errors of several libraries
        raise UserError(f"cannot push to {repo}: {_hub_reason(error)}; nothing was exported") from None
    if taken:
        raise UserError(f"push={repo} exists on the hub: choose another name; nothing was exported")


def push_folder(folder: Path, repo: str, private: bool) -> str:
    """Create ``repo`` on the hub and upload ``folder``; return its address.

    Raises:
        UserError: what went wrong, and how to go on; the folder stays.
    """
    import huggingface_hub

    api = huggingface_hub.HfApi()
    try:
        url = api.create_repo(repo, private=private)
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Export of a cad-train run")
    except Exception as error:  # the hub's client raises errors of several libraries
        again = f"hf upload {repo} {folder}{' --private' if private else ''}"
        raise UserError(f"{folder} is whole, but was not pushed: {_hub_reason(error)}; then: {again}") from None
    return str(url)


def _hub_reason(error: Exception) -> str:
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return "offline mode is on: unset HF_HUB_OFFLINE"
    if isinstance(error, LocalTokenNotFoundError):
        return "there is no access token here: log in with `hf auth login`, or set HF_TOKEN"
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code if error.response is not None else None
        if status == 401:
            return "the hub does not accept the access token: log in again with `hf auth login`"
        if status == 403:
            return "the access token may not write there: make one with write access"
        return f"the hub refused it ({(str(error).splitlines() or [status])[0]})"
    return f"the hub cannot be reached ({(str(error).splitlines() or [type(error).__name__])[0]}): check the network"
