"""Lossless escape of the grammar's reserved literals inside gen bodies (paper section 2.2 and Appendix I, made total).

The paper substitutes look-alike Unicode characters and is injective only on text without them. Here a reserved opening
(`<copy`, `</copy`, `<gen`, `</gen`, `<program`, `</program`) gets one backslash after its `<`, and an opening that
already carries k backslashes gets k + 1. Decoding removes one. Every string survives, text without a reserved opening
is unchanged, and an encoded body never contains `</gen`, so the decoder may end a body on those five bytes and one
more.
"""

from __future__ import annotations

import re

_OPENING = re.compile(r"<(\\*)(/?(?:copy|gen|program))")
_ESCAPED = re.compile(r"<\\(\\*)(/?(?:copy|gen|program))")


def encode_gen_body(text: str) -> str:
    """Return ``text`` with every reserved opening escaped; ``decode_gen_body`` is the inverse for every string."""
    return _OPENING.sub(r"<\\\1\2", text)


def decode_gen_body(body: str) -> str:
    """Return the text that ``encode_gen_body`` made ``body`` from; unescaped openings are left as they are."""
    return _ESCAPED.sub(r"<\1\2", body)
