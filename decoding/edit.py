"""Edit a text file as an instruction says: show the change as a diff, or write it.

    python decoding/edit.py --ckpt runs/sft_combined-seed0 notes.md "Change the due date to Friday."
    python decoding/edit.py --ckpt RUN --write notes.md "Change the due date to Friday."
    python decoding/edit.py --ckpt RUN main.py "x=1 should be x=2" min_confidence=0.9 | git apply

FILE is the first word that is not a setting, and the next word is the instruction, whatever it says: only --options,
and key=value without a blank and with a key listed below, are still settings there. instruction=TEXT is for the rest.
A YAML file is a document like any other here, never settings. --write stands alone, or is --write=false.

The diff goes to stdout and fits git apply and patch; all else is said on stderr. Prompt style, splice setting and base
model are those of the checkpoint's run, if it has one; a key given here overrides them.

The file keeps its encoding, byte-order mark, line ends, mode and owner, and is replaced as a whole or not at all.
Exit code 0: done, or nothing to change. 2: a mistake on the command line, or an edit that was refused: nothing is
written where the program was cut off by a limit, its confidence is below min_confidence, its text does not fit the
file's encoding, or the file changed meanwhile, is read-only, or has several hard links.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import yaml

from decoding.commandline import UserError, run
from decoding.loading import EXPORTED_SETTINGS, find_model, load_encoder, load_model
from decoding.textfile import TextFile, check_replaceable, read_text_file, replace_text

if TYPE_CHECKING:
    from decoding.decoder import Edit, SpliceDecoder
    from decoding.tokens import TextTokenizer

_SETTING = re.compile(r"([A-Za-z_]\w*)=")
_RUN_CHOICES = {"style": ("numbered", "plain"), "splice": ("none", "full")}
_STOPS = {  # why there is no edited text, and what to do
    "max_ops": "its program has more than max_ops operations: raise max_ops=",
    "max_tokens": "its program was not done after max_tokens, {written} tokens: raise max_tokens=",
    "context": "prompt and program, {prompt} and {written} tokens, fill the model's context: split the document",
    "tokenizer_lossy": "{refused}: take another model",
    "lone_surrogate": "{refused}: take it out",
}


@dataclass
class Config:
    """What to edit, how, and with which model."""

    ckpt: str  # run folder, model or adapter folder, GGUF file, or hub name
    file: str  # the text file to edit: FILE
    instruction: str  # what to do with it
    write: bool = False  # change the file instead of printing the diff
    min_confidence: float | None = None  # refuse an edit whose decisions are together less probable, above 0 up to 1
    encoding: str | None = None  # of the file; default UTF-8, or what its byte-order mark says
    base: str | None = None  # base of an adapter; default the run's, or what the adapter names
    style: Literal["numbered", "plain"] | None = None  # of the prompt; default the run's, else numbered
    splice: Literal["none", "full"] | None = None  # what the model sees of copies; default the run's, else none
    max_ops: int = 512  # operations an edit may have
    max_tokens: int | None = None  # tokens of a program; default twice the document's plus 256
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on an accelerator, float32 on a CPU
    device: str | None = None  # default the accelerator if there is one

    def __post_init__(self) -> None:
        if not self.instruction.strip():
            raise ValueError("the instruction is empty: say what to change")
        if self.min_confidence is not None and not 0 < self.min_confidence <= 1:
            raise ValueError(f"min_confidence={self.min_confidence}: must be above 0 and at most 1")
        for name in ("max_ops", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")


def main(config: Config) -> None:
    """Read the file, load the model, and edit."""
    file = read_text_file(Path(config.file), config.encoding)
    if config.write:
        check_replaceable(file)  # before the minutes that a model may take
    edit_file(load_decoder(config), file, config)


def edit_file(decoder: SpliceDecoder, file: TextFile, config: Config) -> None:
    """Edit ``file``: print the diff to stdout, or with ``write`` replace its text.

    Raises:
        UserError: an edit that is refused (see ``decode_edit``), or that cannot be written; the file is as it was.
    """
    edit = decode_edit(decoder, file, config.instruction, config.min_confidence)
    if edit.text == file.text:
        print(f"no change: the edit leaves {file.path} as it is", file=sys.stderr)
        return
    diff = unified_diff(file, edit.text)
    if config.write:
        replace_text(file, edit.text)
    else:
        _print_diff(diff, _diff_encoding(file))
    added, removed = (sum(line.startswith(sign) for line in diff[2:]) for sign in (b"+", b"-"))
    done = "wrote" if config.write else "not written:"
    print(f"{done} {file.path}, +{added} -{removed} lines, confidence {edit.confidence:.3g}", file=sys.stderr)


def decode_edit(decoder: SpliceDecoder, file: TextFile, instruction: str, min_confidence: float | None = None) -> Edit:
    """Return the edit that the decoder makes of the file's text, with a text that can be used.

    Raises:
        UserError: a limit ended the program, the tokenizer cannot express document or instruction, the new text ends
            inside a character, or the edit is less probable than ``min_confidence``.
    """
    from decoding.decoder import EditRequest

    [edit] = decoder.decode([EditRequest(instruction, file.text)])
    stats = edit.stats
    if edit.text is None:
        why = _STOPS.get(stats.stop, stats.stop)
        refused = _refused_text(decoder.encoder.text, file.text, instruction) if "{refused}" in why else ""
        why = why.format(prompt=stats.prompt_tokens, written=len(edit.ids), refused=refused)
        raise UserError(f"no edit of {file.path}: {why}")
    if stats.broken_utf8:
        raise UserError(f"no edit of {file.path}: its new text ends inside a character")
    if min_confidence is not None and edit.confidence < min_confidence:
        message = f"its confidence is {edit.confidence:.3g}, below min_confidence={min_confidence:g}"
        raise UserError(f"no edit of {file.path}: {message}")
    return edit


def _refused_text(tokenizer: TextTokenizer, document: str, instruction: str) -> str:
    """Say which text the tokenizer refuses, and why; the decoder keeps only the reason's name."""
    from decoding.tokens import TokenizerError

    for name, text in (("document", document), ("instruction", instruction)):
        try:
            tokenizer.encode(text)
        except TokenizerError as error:
            return f"in the {name}, {error.detail}"
    return "the tokenizer refuses the prompt, though neither the document nor the instruction alone"


def load_decoder(config: Config) -> SpliceDecoder:
    """Load the checkpoint with the settings it was trained with, where ``config`` gives no other."""
    model_name, run_folder = find_model(config.ckpt)  # its mistakes are told before the slow imports
    trained = run_settings(run_folder, model_name)

    import torch

    from decoding.decoder import SpliceDecoder

    dtype = None if config.dtype == "auto" else getattr(torch, config.dtype)
    model = load_model(model_name, dtype=dtype, device=config.device, base=config.base or trained.get("model"))
    encoder = load_encoder(model_name)
    return SpliceDecoder(
        model,
        encoder.tokenizer,
        encoder=encoder,
        splice=config.splice or trained.get("splice", "none"),
        style=config.style or trained.get("style", "numbered"),
        max_ops=config.max_ops,
        max_tokens=config.max_tokens,
    )


def run_settings(run_folder: Path | None, model: str) -> dict[str, str]:
    """Return the style, splice setting and base model that a model was trained with; nothing where nothing says so.

    They stand in its run, or in an exported folder beside the weights.

    Raises:
        UserError: settings that cannot be read, or are none of ours.
    """
    path = run_folder / "config.yaml" if run_folder else Path(model).expanduser() / EXPORTED_SETTINGS
    if run_folder is None and not path.is_file():
        return {}
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    settings = settings if isinstance(settings, dict) else {}
    found = {name: str(settings[name]) for name in ("model", *_RUN_CHOICES) if name in settings}
    for name, choices in _RUN_CHOICES.items():
        if name in found and found[name] not in choices:
            raise UserError(f"{path}: {name} is {found[name]!r}, not one of {', '.join(choices)}")
    return found


# --- the diff ---------------------------------------------------------------------------------------------------------


def unified_diff(file: TextFile, text: str) -> list[bytes]:
    """Return the lines of the diff from the file to ``text``, in the file's bytes, so that it can be applied to them.

    A file in UTF-16 or UTF-32 is no text to git or patch: its diff is in UTF-8, to be read only.

    Raises:
        UserError: a character that the file's encoding does not have.
    """
    sides = [file.data, file.encode(text)]
    if _diff_encoding(file) != file.encoding:
        sides = [side.decode(file.encoding).encode("utf-8", "backslashreplace") for side in sides]
    # Only a line feed ends a line, as everywhere in the toolkit; bytes.splitlines() would also break at "\r".
    old, new = (re.findall(rb"[^\n]*\n|[^\n]+", side) for side in sides)
    name = _diff_name(file.target)
    lines = [b"--- " + _quoted(b"a/" + name), b"+++ " + _quoted(b"b/" + name)]
    for line in list(difflib.diff_bytes(difflib.unified_diff, old, new))[2:]:
        lines += [line] if line.endswith(b"\n") else [line + b"\n", b"\\ No newline at end of file\n"]
    return lines


def _diff_encoding(file: TextFile) -> str:
    return file.encoding if "\n".encode(file.encoding) == b"\n" else "utf-8"


def _diff_name(target: Path) -> bytes:
    """The path from the working folder where the file is below it, else from the root."""
    here = Path(os.path.realpath(Path.cwd()))
    return os.fsencode(target.relative_to(here if target.is_relative_to(here) else target.anchor))


def _quoted(name: bytes) -> bytes:
    """A name as the header of a diff holds it: in C's quotes where it would not be read back as it is."""
    if re.search(rb'[\x00-\x1f\x7f"\\]', name):
        return b'"' + re.sub(rb'[^ -~]|["\\]', lambda found: b"\\%03o" % ord(found[0]), name) + b'"\n'
    return name + (b"\t\n" if b" " in name else b"\n")  # a tab ends a name that has blanks


def _print_diff(lines: list[bytes], encoding: str) -> None:
    sys.stdout.flush()
    out = sys.stdout.buffer
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb":
        shown = _coloured(line.decode(encoding, "replace") for line in lines)
        out.writelines(line.encode(sys.stdout.encoding, "replace") for line in shown)
    else:
        out.writelines(lines)
    out.flush()


def _coloured(lines: Iterable[str]) -> Iterable[str]:
    colours = {"@": "36", "+": "32", "-": "31"}  # cyan, green, red, as git has them
    for number, line in enumerate(lines):
        colour = "1" if number < 2 else colours.get(line[0], "")  # the two headers are bold
        yield f"\x1b[{colour}m{line.removesuffix(chr(10))}\x1b[m\n" if colour else line


# --- the command line -------------------------------------------------------------------------------------------------


def read_words(argv: list[str]) -> list[str]:
    """Return the command line with FILE and instruction as ``file=`` and ``instruction=``; the rule is in the help.

    Raises:
        UserError: a third word, or FILE or instruction both as a word and as a key.
    """
    if "-h" in argv or "--help" in argv:
        return argv
    kinds = {field.name: field.type for field in fields(Config)}
    settings: list[str] = []
    words: list[str] = []
    given: set[str] = set()
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        assignment = _SETTING.match(token)
        if token.startswith("--"):
            name, sign, _ = token.removeprefix("--").partition("=")
            given.add(name)
            flag = not sign and kinds.get(name) == "bool"
            settings.append(f"{token}=true" if flag else token)
            if name in kinds and not sign and not flag and rest and not rest[0].startswith("--"):
                settings.append(rest.pop(0))
        elif assignment and (len(words) != 1 or _is_setting(assignment[1], token, kinds)):
            given.add(assignment[1])
            settings.append(token)
        else:
            words.append(token)
    if len(words) > 2:
        read = f"FILE is {words[0]!r} and the instruction {words[1]!r}"
        raise UserError(f"unexpected argument {words[2]!r}: {read}; --help has the rule")
    for name, word in zip(("file", "instruction"), words, strict=False):
        if name in given:
            raise UserError(f"{name} is given twice: as {name}= and as the word {word!r}")
        settings.append(f"{name}={word}")
    return settings


def _is_setting(name: str, token: str, kinds: dict[str, str]) -> bool:
    """Whether ``token``, which begins with ``name=`` and stands where an instruction would, is none."""
    return name == "instruction" or (name in kinds and len(token.split()) == 1)


def _main() -> None:
    try:
        sys.argv[1:] = read_words(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    run(main, Config, description=__doc__, usage="--ckpt PATH [--write] [key=value ...] FILE INSTRUCTION")


if __name__ == "__main__":
    _main()
