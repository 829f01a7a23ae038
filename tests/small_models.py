"""Small tokenizers and models for tests, made on the spot: byte-level and SentencePiece-like BPEs, two-layer models."""

from __future__ import annotations

import base64
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Literal

import pytest
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from decoding.encoder import ProgramEncoder

torch.set_num_threads(1)

SMOLLM2 = Path(__file__).resolve().parents[1] / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED_TEXT = "<tool_call>"  # an added token that is not special, as Qwen has
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "[INST] {{ message['content'] }} [/INST]{% endfor %}"
)
# The pre-tokenizer of Qwen2 (one digit a token) and of Llama 3 (up to three).
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN_ADDED = (
    *CONTROL,
    *(f"<|{name}_{end}|>" for name in ("object_ref", "box", "quad", "vision") for end in ("start", "end")),
    *(f"<|{name}_pad|>" for name in ("vision", "image", "video")),
)
QWEN_ADDED_TEXT = (
    "<tool_call>",
    "</tool_call>",
    *(f"<|fim_{name}|>" for name in ("prefix", "middle", "suffix", "pad")),
    "<|repo_name|>",
    "<|file_sep|>",
)

_TEXT = (
    'def add(first, second):\n    """Return the sum."""\n    return first + second\n',
    "for index in range(len(lines)):\n        if lines[index] != other[index]:\n            count += 1\n",
    'print(f"{name}: {value}")\nresult = [item for item in items if item]\n\n\n',
    "const total = values.reduce((sum, value) => sum + value, 0);\r\nreturn { total };\r\n",
    "The meeting is on Monday; bring the notes, please. It's at the usual place, isn't it?\n",
    "Status: open\n- [ ] write the tests\n- [x] read the plan\n\n",
    "<div>text</div>\n<p>foo()</p>\n<b>bar();</b>\n<i>baz</i>\n",
    '<program>\n<copy lines="1-3"/>\n<gen>\nreturn foo()</gen>\n<copy lines="5-9"/>\n</program>\n' * 3,
    "café naïve 世界\n",
)

TokenizerKind = Literal["byte_level", "split_slash", "three_digits", "nfc", "metaspace", "no_template"]
SUPPORTED: tuple[TokenizerKind, ...] = ("byte_level", "split_slash", "three_digits", "nfc", "metaspace", "no_template")


@cache
def tokenizer_of(kind: TokenizerKind) -> PreTrainedTokenizerFast:
    """Return a tokenizer that the toolkit supports.

    ``split_slash`` never joins ``</``; ``three_digits`` groups numbers from the left as Llama 3 does; ``nfc`` applies
    NFC as Qwen does; ``metaspace`` is built as Llama 2's (byte fallback, no system role) and has tokens that run over
    the end of a gen body; ``no_template`` has no chat template.
    """
    if kind == "metaspace":
        return _metaspace_tokenizer()
    return byte_level_tokenizer(
        split_slash=kind == "split_slash",
        digits="{1,3}" if kind == "three_digits" else "",
        nfc=kind == "nfc",
        chat_template=None if kind == "no_template" else CHATML,
    )


@cache
def encoder_of(kind: TokenizerKind) -> ProgramEncoder:
    """Return the program encoder of ``tokenizer_of(kind)``."""
    return ProgramEncoder(tokenizer_of(kind))


@cache
def byte_level_tokenizer(
    *, split_slash: bool = False, digits: str = "", nfc: bool = False, chat_template: str | None = CHATML
) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE of some 700 tokens with ChatML control tokens and one added token that is text."""
    tokenizer = Tokenizer(models.BPE())
    steps = [pre_tokenizers.Split("<", "isolated")] if split_slash else []
    steps.append(pre_tokenizers.Split(Regex(WORDS.replace("DIGITS", digits)), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.normalizer = normalizers.NFC() if nfc else None
    tokenizer.decoder = decoders.ByteLevel()
    corpus = list(_TEXT)
    if digits:
        corpus += [f"{value:0{width}d}\n" for width in (2, 3) for value in range(10**width)]
    trainer = trainers.BpeTrainer(
        vocab_size=4000 if digits else 700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens(list(CONTROL))
    tokenizer.add_tokens([AddedToken(ADDED_TEXT, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=chat_template
    )


def _metaspace_tokenizer() -> PreTrainedTokenizerFast:
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    lines = [line.strip("\r").replace(" ", "\u2581") for text in _TEXT for line in text.split("\n")]
    # Runs that Llama 2 would not have, so that single tokens reach over the end of a gen body.
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=list("0123456789"), show_progress=False)
    learner.train_from_iterator([line for line in lines if "lines=" not in line] + ["bar</gen>", "1 2"] * 9, trainer)
    learned = json.loads(learner.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [piece for piece, _ in sorted(learned["vocab"].items(), key=lambda item: item[1])]
    model = models.BPE(
        {piece: index for index, piece in enumerate(pieces)},
        [tuple(pair) for pair in learned["merges"]],
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", chat_template=NO_SYSTEM
    )


@cache
def lossy_tokenizer() -> PreTrainedTokenizerFast:
    """Return a WordPiece tokenizer that lowers case and drops blanks, as BERT's does: to be refused."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    tokenizer.train_from_iterator(_TEXT, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[SEP]", name_or_path="lossy"
    )


@cache
def qwen_tokenizer() -> PreTrainedTokenizerFast:
    """Return Qwen2.5's tokenizer, built from the vocabulary in the package ``dashscope``; skips where it is absent."""
    found = importlib.util.find_spec("dashscope")
    vocabulary = found and Path(found.origin).parent / "resources" / "qwen.tiktoken"
    if not vocabulary or not vocabulary.is_file():
        pytest.skip("needs Qwen's vocabulary: pip install --no-deps dashscope==1.20.11")
    rows = (line.split() for line in vocabulary.read_bytes().splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in rows}
    spell = {byte: chr(code) for byte, code in _byte_alphabet().items()}
    written = {token: "".join(map(spell.__getitem__, token)) for token in ranks}
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        # Every split into two tokens; the merge order is the rank of the whole, which is tiktoken's rule.
        splits = ((token[:at], token[at:]) for at in range(1, len(token)))
        halves = [pair for pair in splits if pair[0] in ranks and pair[1] in ranks]
        halves.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(written[left], written[right]) for left, right in halves]
    tokenizer = Tokenizer(models.BPE({written[token]: rank for token, rank in ranks.items()}, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS.replace("DIGITS", "")), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(QWEN_ADDED))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in QWEN_ADDED_TEXT])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHATML
    )


@cache
def qwen_encoder() -> ProgramEncoder:
    """Return the program encoder of ``qwen_tokenizer()``."""
    return ProgramEncoder(qwen_tokenizer())


@cache
def smollm2_encoder() -> ProgramEncoder:
    """Return the program encoder of SmolLM2's tokenizer, read from its GGUF file; skips where that is absent."""
    if not SMOLLM2.is_file():
        pytest.skip(f"needs models/{SMOLLM2.name}: make quickstart fetches it")
    pytest.importorskip("gguf", reason="reading a GGUF file needs the gguf package")
    return ProgramEncoder(AutoTokenizer.from_pretrained(str(SMOLLM2.parent), gguf_file=SMOLLM2.name))


def _byte_alphabet() -> dict[int, int]:
    """GPT-2's stand-in code point for every byte: itself where printable, else from U+0100 on in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {byte: 0x100 + rank for rank, byte in enumerate(hidden)}


ModelKind = Literal["qwen2", "llama", "mistral"]
_CLASSES = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
}


def tiny_model(
    kind: ModelKind,
    vocabulary: int,
    seed: int,
    *,
    favoured: tuple[int, ...] = (),
    successors: tuple[tuple[int, int], ...] = (),
    bias: float = 6.0,
    positions: int = 4096,
    window: int | None = None,
    heads: tuple[int, int] = (2, 1),
    tied: bool = False,
) -> torch.nn.Module:
    """Return a random two-layer causal LM in fp32, for evaluation, whose choices are seldom near-ties.

    The logits have a spread of about 3; those of the ids ``favoured`` are about ``bias`` higher in every context, and
    that of b after a about twice ``bias`` for every pair (a, b) of ``successors``. With a ``window`` both layers of a
    mistral see only so many positions, and one of a qwen2; a llama has none. ``heads`` are of queries and of keys.
    ``tied``, the head is the embedding, and nothing of the logits holds.
    """
    config_class, model_class = _CLASSES[kind]
    windows = {}
    if kind == "mistral":
        windows = {"sliding_window": window}
    elif window is not None:
        windows = {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 1}
    config = config_class(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        max_position_embeddings=positions,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **windows,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_class(config)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() == 2:
                    torch.nn.init.normal_(weight, std=1.0 if "embed" in name else 0.2)
            if tied:
                return model.float().eval()
            head = model.lm_head.weight
            torch.nn.init.normal_(head, std=3 / 32**0.5)
            # One channel is nearly constant in every embedding, and one marks each predecessor; the head reads them.
            embedding = model.model.embed_tokens.weight
            channels = range(-1, -2 - len(successors), -1)
            embedding[:, channels] = 0.0
            head[:, channels] = 0.0
            embedding[:, -1] = 4.0
            head[list(favoured), -1] = bias / 2
            for channel, (before, after) in zip(channels[1:], successors, strict=True):
                embedding[before, channel] = 8.0
                head[after, channel] = bias / 2
    return model.float().eval()


def save_model(folder: Path, kind: Literal["qwen2", "llama"], *, tied: bool = False) -> Path:
    """Save a tiny model and its byte-level tokenizer as a user would have them; return ``folder``."""
    tokenizer = tokenizer_of("byte_level")
    tiny_model(kind, len(tokenizer), seed=0, tied=tied).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
