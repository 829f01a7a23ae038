"""The prompt: instruction and document as chat messages, in one function for training, decoding and evaluation."""

from __future__ import annotations

import re
from typing import Literal

from decoding.grammar import split_lines

PromptStyle = Literal["numbered", "plain"]

_TASK = {
    "numbered": 'Edit the document. Reply with a program: <copy lines="i-j"/> keeps lines i to j, <gen> adds lines.',
    "plain": (
        'Edit the document. Reply with a program: <copy lines="i-j"/> keeps lines i to j, counted from 1, <gen> adds '
        "lines."
    ),
}
_GUTTER = re.compile(r"^[1-9][0-9]*\|", re.ASCII)


def render_prompt(instruction: str, document: str, style: PromptStyle = "numbered") -> list[dict[str, str]]:
    """Return the chat messages that ask for an edit program.

    ``numbered`` shows each line as ``N|text`` and is exactly invertible (``strip_gutter``); ``plain`` shows the
    document as it is. The instruction stands after the document, next to the program it governs.

    Raises:
        ValueError: an unknown style.
    """
    if style not in _TASK:
        raise ValueError(f"style={style!r}: choose one of {', '.join(_TASK)}")
    shown = number_lines(document) if style == "numbered" else document
    return chat(_TASK[style], shown, instruction)


def chat(task: str, shown_document: str, instruction: str) -> list[dict[str, str]]:
    """Return the two messages every prompt of the toolkit has: the task, then document and instruction."""
    return [
        {"role": "system", "content": task},
        {"role": "user", "content": f"Document:\n{shown_document}\n\nInstruction: {instruction}"},
    ]


def number_lines(document: str) -> str:
    """Return the document with the gutter ``N|`` before every line, the empty last one included.

    No blank follows the bar: it would change the tokens of every line's start, and those of indented code most, so that
    neither a quote in the instruction nor the line to be written would look like the line shown.
    """
    return "\n".join(f"{number}|{line}" for number, line in enumerate(split_lines(document), start=1))


def strip_gutter(numbered: str) -> str:
    """Return the document that ``number_lines`` made ``numbered`` from."""
    return "\n".join(_GUTTER.sub("", line, count=1) for line in split_lines(numbered))


_EXAMPLE_DOCUMENT = "# Plan\nOwner: Ana\nDue: Monday\nStatus: open\n"
_EXAMPLES = (
    (
        'Change "Monday" to "Friday".',
        '<program>\n<copy lines="1-2"/>\n<gen>\nDue: Friday\n</gen>\n<copy lines="4-5"/>\n</program>',
    ),
    (
        'Delete the line "Owner: Ana".',
        '<program>\n<copy lines="1-1"/>\n<copy lines="3-5"/>\n</program>',
    ),
    (
        'Insert the line "Room: 12" after the title.',
        '<program>\n<copy lines="1-1"/>\n<gen>\nRoom: 12\n</gen>\n<copy lines="2-5"/>\n</program>',
    ),
)


def render_few_shot_prompt(instruction: str, document: str, style: PromptStyle = "numbered") -> list[dict[str, str]]:
    """Return messages that teach the grammar by worked examples, for models that never saw it (baseline R004)."""
    shown = number_lines(_EXAMPLE_DOCUMENT) if style == "numbered" else _EXAMPLE_DOCUMENT
    worked = "\n\n".join(f"Instruction: {asked}\n{program}" for asked, program in _EXAMPLES)
    messages = render_prompt(instruction, document, style)
    messages[0]["content"] += (
        f" Lines that should stay are copied, never retyped. Reply with the program alone.\n\nExamples for this "
        f"document:\n{shown}\n\n{worked}"
    )
    return messages


_FORMAT_TASKS = {
    "full": "Edit the document. Reply with the whole edited document and nothing else.",
    "search_replace": (
        "Edit the document. Reply with search/replace blocks and nothing else: a line <<<<<<< SEARCH, the exact lines "
        "to find, a line =======, the lines to put there, a line >>>>>>> REPLACE."
    ),
    "unified_diff": "Edit the document. Reply with a unified diff and nothing else.",
}


def render_format_prompt(instruction: str, document: str, format: str) -> list[dict[str, str]]:
    """Return messages that ask for an edit in another format: ``full`` (the whole edited document, baseline R003),
    ``search_replace`` or ``unified_diff``.

    Raises:
        ValueError: an unknown format.
    """
    if format not in _FORMAT_TASKS:
        raise ValueError(f"format={format!r}: choose one of {', '.join(_FORMAT_TASKS)}")
    return chat(_FORMAT_TASKS[format], document, instruction)
