"""A tokenizer seen as bytes: document text to ids without control tokens, and ids back to the exact bytes."""

from __future__ import annotations

import json
import re

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

_BYTE_TOKEN = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")


class TokenizerError(ValueError):
    """A tokenizer or text that cannot be used.

    ``reason`` is unsupported_tokenizer, tokenizer_lossy or lone_surrogate; ``detail`` is the message without it.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason, self.detail = reason, message


class TextTokenizer:
    """Encodes plain text exactly, for any fast byte-level or byte-fallback tokenizer.

    Works on a private copy of the tokenizer without added tokens, Unicode normalisation, or prefix spaces. So a
    document that spells ``<|im_end|>`` gives ordinary ids, and a decomposed accent comes back as it was (Qwen's own
    tokenizer normalises to NFC).

    Attributes:
        token_bytes: for every id the bytes it stands for; None for control tokens and holes in the vocabulary.

    Raises:
        TokenizerError: ``unsupported_tokenizer`` when the vocabulary cannot be read as bytes.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.name = str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
        if not getattr(tokenizer, "is_fast", False):
            raise TokenizerError(
                "unsupported_tokenizer", f"{self.name}: only fast (tokenizers-based) tokenizers are supported"
            )
        spec = json.loads(tokenizer.backend_tokenizer.to_str())
        # Runs of blanks that a few code tokenizers keep as added tokens are text, everything else added is control.
        blanks = [token for token in spec["added_tokens"] if not token["special"] and token["content"].isspace()]
        byte_level = "ByteLevel" in _kinds(spec["decoder"]) or "ByteLevel" in _kinds(spec["pre_tokenizer"])
        spec.update(added_tokens=blanks, post_processor=None, truncation=None, padding=None)
        spec["normalizer"] = None if byte_level else _only_replace(spec["normalizer"])
        _forbid_prefix_space(spec["pre_tokenizer"])
        self._tokenizer = Tokenizer.from_str(json.dumps(spec))
        fallback = bool(spec["model"].get("byte_fallback"))
        # Gemma adds runs of its blank sign that its merges make as well: text, by the merges.
        controls = {
            token.content
            for token in tokenizer.added_tokens_decoder.values()
            if token.special or not token.content.replace("\u2581", " ").isspace()
        }
        # The copy numbers added tokens anew when it lacks those before them.
        self._ids = {self._tokenizer.token_to_id(token["content"]): token["id"] for token in blanks}
        self.token_bytes: list[bytes | None] = [None] * (max(tokenizer.get_vocab().values()) + 1)
        for token, index in self._tokenizer.get_vocab(with_added_tokens=False).items():
            if token not in controls:
                self.token_bytes[index] = _byte_level_bytes(token) if byte_level else _metaspace_bytes(token, fallback)
        for token in blanks:
            self.token_bytes[token["id"]] = token["content"].encode()
        self.encode("Ab 1\n\tcafe\u0301 \U00012080  x\r\n")  # refuse at load what would fail on the first document

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``; their bytes joined are exactly ``text`` in UTF-8.

        Raises:
            TokenizerError: ``lone_surrogate`` for text that is not Unicode, ``tokenizer_lossy`` for text this tokenizer
                cannot give back.
        """
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            message = f"character {error.start} ({text[error.start]!r}) is half of a surrogate pair, not text"
            raise TokenizerError("lone_surrogate", message) from None
        ids = [self._ids.get(index, index) for index in self._tokenizer.encode(text, add_special_tokens=False).ids]
        if (given := self.decode(ids)) != raw:
            raise TokenizerError("tokenizer_lossy", f"{self.name} cannot give back {_first_lost(text, raw, given)}")
        return ids

    def decode(self, ids: list[int]) -> bytes:
        """Return the bytes of ``ids``; control tokens have none."""
        pieces = self.token_bytes
        return b"".join(pieces[index] or b"" for index in ids if index < len(pieces))


def _first_lost(text: str, raw: bytes, given: bytes) -> str:
    """Name the first character of ``text`` that the bytes ``given`` for it, which are not its ``raw`` ones, lack."""
    differ = (at for at, pair in enumerate(zip(raw, given, strict=False)) if pair[0] != pair[1])
    at = len(raw[: next(differ, len(given))].decode(errors="ignore"))
    if at == len(text):
        return "the end of the text"
    return f"{text[at]!r} (character {at}, line {text.count(chr(10), 0, at) + 1})"


def _kinds(part: dict | None) -> set[str]:
    """The ``type`` names in a pre-tokenizer, normaliser or decoder of a tokenizer file, sequences included."""
    if part is None:
        return set()
    inner = part.get("pretokenizers") or part.get("decoders") or part.get("normalizers") or []
    return {part["type"]}.union(*(_kinds(member) for member in inner))


def _only_replace(normalizer: dict | None) -> dict | None:
    """Keep what maps blanks to the metaspace; drop what changes text (NFC, lower case) or adds a first blank."""
    if normalizer is None or normalizer["type"] == "Replace":
        return normalizer
    if normalizer["type"] == "Sequence":
        kept = [member for member in map(_only_replace, normalizer["normalizers"]) if member is not None]
        return {"type": "Sequence", "normalizers": kept}
    return None


def _forbid_prefix_space(pre_tokenizer: dict | None) -> None:
    for part in (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer] if pre_tokenizer else []):
        if part["type"] == "ByteLevel":
            part["add_prefix_space"] = False
        elif part["type"] == "Metaspace":
            part["prepend_scheme"] = "never"


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + rank): byte for rank, byte in enumerate(hidden)}


_ALPHABET = _byte_level_alphabet()


def _byte_level_bytes(token: str) -> bytes | None:
    values = [_ALPHABET.get(character) for character in token]
    return None if None in values else bytes(values)


def _metaspace_bytes(token: str, byte_fallback: bool) -> bytes:
    if byte_fallback and (match := _BYTE_TOKEN.match(token)):
        return bytes([int(match.group(1), 16)])
    return token.replace("\u2581", " ").encode()
