"""Tokenizers and models by name: a run folder, a model or adapter folder, a GGUF file, or a hub id."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from decoding.commandline import UserError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from decoding.encoder import ProgramEncoder
    from decoding.tokens import TextTokenizer


COMPLETED = "COMPLETED"  # a file in every checkpoint folder that is whole: size and SHA-256 of the others, as JSON
EXPORTED_SETTINGS = "cad_train.json"  # the run's settings in an exported model folder
_BASE_FILES = ("config.json", "*.safetensors", "pytorch_model*.bin")
_PIECES, _PIECE = 64, 1 << 20  # of a weight file, in its digest


def find_model(ckpt: str) -> tuple[str, Path | None]:
    """Return the model that ``ckpt`` names, and its run folder if it has one.

    A run folder stands for its ``final``, or for its newest whole checkpoint while there is none; both may be named
    themselves.

    Raises:
        UserError: a path that does not exist, a folder of another kind, or a run without a model.
    """
    path = Path(ckpt).expanduser()
    if _is_run(path):
        folder = path / "final"
        if not folder.is_dir():
            folder = newest_checkpoint(path, lambda text: print(text, file=sys.stderr))
        if folder is None:
            raise UserError(f"{ckpt} is a run without final/ or a whole checkpoint: train it first")
        return str(folder), path
    if path.is_dir() and _is_run(path.resolve().parent):
        return ckpt, path.resolve().parent
    if path.is_dir() and not any((path / file).is_file() for file in ("config.json", "adapter_config.json")):
        raise UserError(f"{ckpt} is neither a run folder nor a model folder (no config.json)")
    local_name(ckpt)  # says so now if there is no such folder or file
    return ckpt, None


def checkpoints(run: Path) -> list[Path]:
    """Return the folders ``checkpoint-N`` of a run by step, whole or not."""
    found = [path for path in run.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(found, key=checkpoint_step)


def newest_checkpoint(run: Path, say: Callable[[str], None] = lambda _: None) -> Path | None:
    """Return the run's whole checkpoint with the highest step.

    Half-written ones do not count; ``say`` is told of those that were whole once and are not now.
    """
    for path in reversed(checkpoints(run)):
        fault = checkpoint_fault(path)
        if fault is None:
            return path
        if (path / COMPLETED).exists():
            say(f"skipping {path.name}: {fault}")
    return None


def checkpoint_fault(checkpoint: Path) -> str | None:
    """Return what is wrong with a checkpoint, such as ``optimizer.pt is missing``; None where it is whole.

    Every file must have the size and SHA-256 that its ``COMPLETED`` states, so that all of it is read: a changed bit
    would train on to other weights without a word. An empty mark, which earlier versions left, states nothing.
    """
    try:
        text = (checkpoint / COMPLETED).read_text(encoding="utf-8")
        stated = json.loads(text) if text else {}
        if text and not stated:
            return f"{COMPLETED} is damaged"
        sizes = {name: facts["size"] for name, facts in stated.items()}
        digests = {name: facts["sha256"] for name, facts in stated.items()}
    except FileNotFoundError:
        return "half-written" if checkpoint.is_dir() else "missing"
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return f"{COMPLETED} is damaged"
    for name, size in sizes.items():
        if not (checkpoint / name).is_file():
            return f"{name} is missing"
        if (checkpoint / name).stat().st_size != size:
            return f"{name} is damaged"
    with ThreadPoolExecutor() as pool:  # hashing lets go of the interpreter
        found = pool.map(file_digest, (checkpoint / name for name in digests))
        for (name, digest), there in zip(digests.items(), found, strict=True):
            if there != digest:
                return f"{name} is damaged"
    return None


def stated_fault(folder: Path) -> str | None:
    """Return ``checkpoint_fault`` of a model folder that states its digests; others, such as a base, state none."""
    return checkpoint_fault(folder) if (folder / COMPLETED).exists() else None


def file_digest(path: Path) -> str | None:
    """Return the SHA-256 of a file, None where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def checkpoint_step(path: Path) -> int:
    """Return the optimiser step that ``checkpoint-N`` was written after."""
    return int(path.name.rpartition("-")[2])


def _is_run(path: Path) -> bool:
    return (path / "config.yaml").is_file() and (path / "data.json").is_file()


def local_name(name: str) -> str:
    """Return what ``from_pretrained`` takes for ``name``: itself, or for a GGUF file the plain folder made from it.

    The folder (bfloat16 safetensors and tokenizer) is made once and kept under ``CAD_CACHE_DIR``, by default
    ``~/.cache/cad-train``: transformers reads GGUF but cannot save or train what it read.

    Raises:
        UserError: a path that does not exist, or a GGUF file that cannot be read.
    """
    path = Path(name).expanduser()
    if name.endswith(".gguf"):
        if not path.is_file():
            raise UserError(f"there is no GGUF file {name}")
        return str(_plain_folder(path))
    if path.is_dir():
        return str(path)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1 and "/" in name:
        raise UserError(f"there is no model folder {name}")
    return name


def base_identity(name: str) -> str | None:
    """Return what changes when the model that ``name`` stands for does: a hub model's commit, else a SHA-256.

    Of a folder it is over configuration and weight files: name, size, and 64 pieces of 1 MiB spread evenly over each.
    That is all of a file of up to 64 MiB and a second's reading in any; a few weights changed by hand could go unseen
    in a larger one, another training cannot. None where a hub's cache does not say which commit it holds.

    Raises:
        UserError: a hub name that cannot be looked up.
    """
    path = Path(name).expanduser()
    if path.is_file():
        stat = path.stat()
        return _content_digest(path, stat.st_size, stat.st_mtime_ns)
    if not path.is_dir():
        from transformers.utils import cached_file, extract_commit_hash

        try:
            return extract_commit_hash(cached_file(name, "config.json"), None)
        except (OSError, ValueError) as error:
            raise UserError(cannot_load("model", name, error)) from None
    digest = hashlib.sha256()
    for part in sorted(found for pattern in _BASE_FILES for found in path.glob(pattern) if found.is_file()):
        size = part.stat().st_size
        digest.update(f"{part.name} {size}\n".encode())
        with part.open("rb") as file:
            for start in range(0, size, max(_PIECE, (size - _PIECE) // (_PIECES - 1))):
                file.seek(start)
                digest.update(file.read(_PIECE))
    return digest.hexdigest()


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load a tokenizer; a UserError says what is wrong with ``name``."""
    from transformers import AutoTokenizer

    quiet_progress()
    source = local_name(name)
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(cannot_load("tokenizer", name, error)) from None


def load_text_tokenizer(name: str) -> TextTokenizer:
    """Load a tokenizer as its byte-exact text encoder; a UserError says why it is refused (see ``decoding.tokens``)."""
    from decoding.tokens import TextTokenizer

    return _or_refuse(TextTokenizer, name)


def load_encoder(name: str) -> ProgramEncoder:
    """Load a tokenizer as the program encoder; a UserError says why it is refused."""
    from decoding.encoder import ProgramEncoder

    return _or_refuse(ProgramEncoder, name)


def _or_refuse(encoder: type, name: str):
    from decoding.tokens import TokenizerError

    tokenizer = load_tokenizer(name)
    try:
        return encoder(tokenizer)
    except TokenizerError as error:
        raise UserError(f"{name}: {error}") from None


def load_model(
    name: str,
    *,
    dtype: torch.dtype | None = None,
    device: str | None = None,
    base: str | None = None,
    random_weights: bool = False,
) -> PreTrainedModel:
    """Load a causal LM for inference, in evaluation mode.

    ``random_weights`` makes the model from its configuration alone, for measurements that do not depend on weights.

    An adapter folder (``adapter_config.json``) is put on ``base``, by default the model its configuration names.
    ``dtype`` None means bfloat16 on an accelerator and float32 on a CPU; ``device`` None means the accelerator if any.

    Raises:
        UserError: what cannot be found or read, by name.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM

    quiet_progress()
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device={device} cannot be used here: {str(error).splitlines()[0]}") from None
    if dtype is None:
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
    adapter = Path(name).expanduser() / "adapter_config.json"
    source = name
    if adapter.is_file():
        try:
            source = base or json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"]
        except (OSError, ValueError, KeyError) as error:
            raise UserError(cannot_load("adapter", name, error)) from None
    folder = local_name(source)
    try:
        if random_weights:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            with torch.device(device):  # made where it will run
                return AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False).eval()
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, trust_remote_code=False)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        hint = "; name its base model with base=" if adapter.is_file() else ""
        raise UserError(cannot_load("model", source, error) + hint) from None
    if adapter.is_file():
        try:
            model = _with_adapter(model, str(adapter.parent))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise UserError(cannot_load("adapter", name, error)) from None
    return model.to(device).eval()


def quiet_progress() -> None:
    """Keep transformers' bars, which redraw themselves hundreds of times, out of logs and pipes."""
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()


def _with_adapter(model: PreTrainedModel, folder: str):
    from peft import PeftModel

    # Merged in memory: same function, no extra matrix products per forward.
    return PeftModel.from_pretrained(model, folder).merge_and_unload()


def cannot_load(what: str, name: str, error: Exception) -> str:
    """Return in one line why ``what`` (a model, a tokenizer) could not be read from the folder or hub ``name``."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    reason = lines[0] if not lines[0].endswith((":", ",")) else " ".join(lines[:2])
    here = "" if Path(name).expanduser().exists() else f"there is no folder {name} here, and as a hub name it failed: "
    return f"cannot load the {what} {name!r}: {here}{reason}"


def _plain_folder(gguf: Path) -> Path:
    """Convert a GGUF file to a Hugging Face folder, once; concurrent converters end with one whole folder."""
    stat = gguf.stat()
    content = _content_digest(gguf, stat.st_size, stat.st_mtime_ns)[:16]
    converted = Path(os.environ.get("CAD_CACHE_DIR", "~/.cache/cad-train")).expanduser() / "gguf"
    folder = converted / f"{gguf.stem}-{content}"
    if folder.is_dir():
        return folder
    try:
        import gguf as _  # noqa: F401 - transformers imports it only half-way through
    except ImportError:
        raise UserError(f"reading {gguf.name} needs the gguf package: pip install 'cad-train[gguf]'") from None
    converted.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=converted))
    try:
        _convert(gguf, part)
        try:
            part.rename(folder)
        except OSError:  # another process finished first
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


@cache
def _content_digest(path: Path, size: int, modified_ns: int) -> str:
    """SHA-256 of the whole file, since other weights may have the same metadata and size; read once per process."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    try:
        AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
        read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    except Exception as error:  # the reader raises whatever a damaged file makes it raise
        raise UserError(cannot_load("GGUF file", str(gguf), error)) from None
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(read)(config)
    plain.load_state_dict(read.state_dict())
    plain.to(torch.bfloat16).save_pretrained(folder)
