"""Text to ids and back: byte-exact for every supported tokenizer, never a control token, and named refusals."""

from __future__ import annotations

import json

import pytest
from edit_cases import ROUND_TRIPS
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import (
    ADDED_TEXT,
    CHATML,
    CONTROL,
    SUPPORTED,
    byte_level_tokenizer,
    encoder_of,
    lossy_tokenizer,
    qwen_encoder,
    qwen_tokenizer,
    smollm2_encoder,
    tokenizer_of,
)
from tokenizers import AddedToken, Tokenizer, models, normalizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from cad_train.examples import UNSUPERVISED, encode_row
from data_prep.oracle import build_oracle
from data_prep.prepared import OracleRow
from decoding.encoder import ProgramEncoder
from decoding.grammar import parse, render
from decoding.prompt import render_prompt
from decoding.resolver import resolve
from decoding.tokens import TextTokenizer, TokenizerError

SPELLED = (*CONTROL, ADDED_TEXT, "<s>", "</s>", "<unk>", "<0x0A>", "<|fim_prefix|>")
TRICKY = (
    *SPELLED,
    "\n",
    "\r\n",
    "\r",
    "\x0b\x0c\x1c\x85\u2028\u2029",
    "\0",
    "\ufeff",
    "   ",
    "\t",
    "e\u0301",
    "\u1100\u1161",
    "\ufb01",
    "\U0001f469\u200d\U0001f680",
    "\U000130c0",
    "\ufffd",
    "</",
    "()</gen",
    "<copy lines=",
    "123456789",
    "a != b , c",
)
SEVERAL_TOKENS = "\U00013080 \u0f04\u0f05 \U0001faea ok"  # a character, several tokens
MIXED_WIDTHS = "A \u4e16a\u754c\U00013080b"
KINDS = [*SUPPORTED, "qwen"]
EVERY = [*KINDS, "smollm2"]
texts = st.lists(st.sampled_from(TRICKY) | st.text(max_size=6), max_size=8).map("".join)


def get_encoder(kind):
    return {"qwen": qwen_encoder, "smollm2": smollm2_encoder}.get(kind, lambda: encoder_of(kind))()


def control_ids(encoder):
    return set(encoder.tokenizer.added_tokens_decoder)


def with_added(kind, tokens, **options):
    """A tokenizer of ``kind`` with further added tokens."""
    tokenizer = Tokenizer.from_str(tokenizer_of(kind).backend_tokenizer.to_str())
    tokenizer.add_tokens(tokens)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=tokenizer_of(kind).eos_token, **options)


# Bytes in, the same bytes out


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_comes_back_byte_for_byte_without_control_tokens(kind):
    encoder = get_encoder(kind)
    control = control_ids(encoder)

    @settings(max_examples=150, deadline=None)
    @given(texts)
    def check(text):
        if kind == "metaspace" and "\u2581" in text:  # that character stands for the blank there
            with pytest.raises(TokenizerError, match="^tokenizer_lossy"):
                encoder.text.encode(text)
            return
        ids = encoder.text.encode(text)
        assert encoder.text.decode(ids) == text.encode()
        assert not control & set(ids)

    check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["", *TRICKY])
def test_hard_texts_come_back(kind, text):
    encoder = get_encoder(kind)
    ids = encoder.text.encode(text)
    assert encoder.text.decode(ids) == text.encode()
    assert not control_ids(encoder) & set(ids)


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("say <|im_end|> here\n<|im_start|>system\nend\n", id="spec-01"),
        pytest.param("stop token is <|endoftext|>\n", id="spec-03"),
        pytest.param("cafe\u0301\n", id="tok-01"),
        pytest.param("if a != b and c , d . e ?\n", id="tok-06"),
        pytest.param("        return 0  ", id="tok-08"),
        pytest.param(SEVERAL_TOKENS, id="tok-04"),
        pytest.param(MIXED_WIDTHS, id="tok-05"),
    ],
)
def test_reported_faults_of_other_tools_do_not_occur(kind, text):
    encoder = get_encoder(kind)
    ids = encoder.text.encode(text)
    assert not control_ids(encoder) & set(ids)
    assert encoder.text.decode(ids).decode() == text


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("body", [pytest.param(SEVERAL_TOKENS, id="tok-04"), pytest.param(MIXED_WIDTHS, id="tok-05")])
def test_ids_decoded_in_parts_give_each_byte_once(kind, body):
    text = get_encoder(kind).text
    ids = text.encode(body)
    for cut in range(len(ids)):
        assert text.decode(ids[:cut]) + text.decode(ids[cut:]) == body.encode()


def test_a_normalising_tokenizer_gives_decomposed_text_back_although_its_own_call_does_not():
    tokenizer, text = tokenizer_of("nfc"), "cafe\u0301\n"
    own = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(own) == "caf\u00e9\n"
    assert encoder_of("nfc").text.decode(encoder_of("nfc").text.encode(text)).decode() == text


def test_the_tokenizers_own_call_would_make_control_tokens():
    own = tokenizer_of("byte_level")("a <|im_end|>", add_special_tokens=False)["input_ids"]
    assert own[-1] == tokenizer_of("byte_level").eos_token_id


@pytest.mark.parametrize("kind", ["byte_level", "split_slash", "three_digits", "nfc", "qwen"])
def test_a_text_keeps_the_tokenizers_own_ids_where_no_control_token_is_spelled(kind):
    text = "def add(first, second):\n    return first + second\n\n\nfoo()</b>\r\n"
    own = get_encoder(kind).tokenizer(text, add_special_tokens=False)["input_ids"]
    assert get_encoder(kind).text.encode(text) == own


def test_a_metaspace_text_starts_without_an_extra_blank():
    text = encoder_of("metaspace").text
    for start in ("first", " first", "  first", ""):
        assert text.decode(text.encode(start)) == start.encode()


@pytest.mark.parametrize("kind", KINDS)
def test_control_tokens_decode_to_nothing(kind):
    encoder = get_encoder(kind)
    assert encoder.text.decode(sorted(control_ids(encoder))) == b""


def test_runs_of_blanks_kept_as_added_tokens_are_text():
    runs = [AddedToken(" " * width, normalized=False) for width in (2, 4, 8)]
    base = json.loads(tokenizer_of("byte_level").backend_tokenizer.to_str()) | {"added_tokens": []}
    tokenizer = Tokenizer.from_str(json.dumps(base))
    tokenizer.add_tokens([*runs, AddedToken("\n\n", normalized=False)])
    tokenizer.add_special_tokens(["<|im_end|>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=CHATML)
    encoder, text = ProgramEncoder(fast), "a  b\n\n        c <|im_end|>"
    ids = encoder.text.encode(text)
    assert encoder.text.decode(ids) == text.encode()
    assert fast.convert_tokens_to_ids("        ") in ids
    assert fast.eos_token_id not in ids


def test_runs_of_blanks_added_after_the_control_tokens_keep_their_ids():
    fast = with_added("byte_level", [AddedToken("  ", normalized=False), AddedToken("    ", normalized=False)])
    text = TextTokenizer(fast)
    ids = text.encode("a  b    c")
    assert text.decode(ids) == b"a  b    c"
    assert ids == fast("a  b    c", add_special_tokens=False)["input_ids"]


def test_runs_of_the_blank_sign_kept_as_added_tokens_are_text():
    """Gemma's vocabulary has runs of U+2581 that are both merges and added tokens."""
    spec = json.loads(tokenizer_of("metaspace").backend_tokenizer.to_str())
    spec["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    spec["model"]["vocab"]["\u2581\u2581"] = len(spec["model"]["vocab"])
    spec["model"]["merges"].append(["\u2581", "\u2581"])
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.add_tokens([AddedToken("\u2581\u2581", normalized=False)])
    text = TextTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>"))
    assert text.decode(text.encode("a  b")) == b"a  b"


def test_the_blank_sign_as_a_pre_tokenizer_is_supported():
    spec = json.loads(tokenizer_of("metaspace").backend_tokenizer.to_str())
    spec["normalizer"] = None
    spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    text = TextTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>"))
    for sample in ("first", "  first \n", "\n x"):
        assert text.decode(text.encode(sample)) == sample.encode()


def test_an_added_prefix_blank_is_switched_off():
    spec = json.loads(tokenizer_of("byte_level").backend_tokenizer.to_str())
    spec["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    fast = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(spec)), eos_token="<|im_end|>")
    assert fast.decode(fast("def")["input_ids"]) == " def"
    text = TextTokenizer(fast)
    assert text.decode(text.encode("def")) == b"def"


# Refusals


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("text", "where"), [("a\ud800b", 1), ("\udfff", 0), ("\ude00\ud83d", 0)])
def test_half_a_surrogate_pair_is_refused_by_name(kind, text, where):
    with pytest.raises(TokenizerError, match="surrogate pair") as caught:
        get_encoder(kind).text.encode(text)
    assert caught.value.reason == "lone_surrogate"
    assert f"character {where} " in str(caught.value)


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("a \u2581b", r"'\u2581' \(character 2, line 1\)"),
        ("caf\u00e9\n\n\u754c \u2581", r"'\u2581' \(character 8, line 3\)"),
    ],
)
def test_the_first_character_that_is_lost_is_named_with_its_place(text, lost):
    with pytest.raises(TokenizerError, match=f"^tokenizer_lossy: .* cannot give back {lost}$") as caught:
        encoder_of("metaspace").text.encode(text)
    assert caught.value.reason == "tokenizer_lossy"


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize(
    ("before", "after"), [pytest.param(*edit[1:3], id=edit.id) for edit in ROUND_TRIPS if edit.id == "sl-05"]
)
def test_an_edit_beside_rare_control_characters_trains_on_its_text_or_is_refused_by_name(kind, before, after):
    encoder, example = get_encoder(kind), row(before, after)
    try:
        input_ids, regions = encode_row(encoder, example, "plain", "full")
    except TokenizerError as error:  # SmolLM2 has no token for U+001D
        assert kind == "smollm2" and str(error).startswith("tokenizer_lossy") and "'\\x1d' (character" in str(error)
        return
    assert encoder.text.decode(input_ids).count(before.split("\n")[0].encode()) == 2  # in the prompt and as a copy
    program = [index for index, region in zip(input_ids, regions, strict=True) if region != UNSUPERVISED]
    assert resolve(parse(encoder.text.decode(program).decode()), before) == after


def test_a_tokenizer_that_loses_text_is_refused_by_name():
    with pytest.raises(TokenizerError, match="lossy") as caught:
        TextTokenizer(lossy_tokenizer())
    assert caught.value.reason in ("unsupported_tokenizer", "tokenizer_lossy")


def test_a_lowercasing_vocabulary_without_byte_fallback_is_refused():
    vocabulary = {"<unk>": 0} | {character: index for index, character in enumerate("abcdefghijkl\u2581\n", start=1)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<unk>")
    with pytest.raises(TokenizerError) as caught:
        TextTokenizer(fast)
    assert caught.value.reason in ("unsupported_tokenizer", "tokenizer_lossy")


def test_a_slow_tokenizer_is_refused():
    with pytest.raises(TokenizerError, match="only fast") as caught:
        TextTokenizer(ByT5Tokenizer())
    assert caught.value.reason == "unsupported_tokenizer"


def test_a_tokenizer_without_an_end_of_sequence_is_refused():
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer_of("byte_level").backend_tokenizer)
    with pytest.raises(TokenizerError, match="end-of-sequence") as caught:
        ProgramEncoder(fast)
    assert caught.value.reason == "unsupported_tokenizer"


def test_a_tokenizer_without_single_digits_is_refused():
    spec = json.loads(tokenizer_of("byte_level").backend_tokenizer.to_str())
    spec["model"]["vocab"]["77"] = spec["model"]["vocab"].pop("7")
    fast = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(spec)), eos_token="<|im_end|>")
    with pytest.raises(TokenizerError) as caught:
        ProgramEncoder(fast)
    assert caught.value.reason in ("unsupported_tokenizer", "tokenizer_lossy")


# The structural table


def test_qwens_ids_are_the_published_ones():
    encode = qwen_encoder().text.encode
    expected = {"<": 27, "</": 522, ">": 29, "copy": 8560, "gen": 4370, "program": 14906, " lines": 5128, '="': 428}
    expected |= {'"': 1, "/>": 9685, '"/>': 13123, '"/>\n': 4639, ">\n": 397, ">\n\n": 1339, "><": 1784, '"/><': 75942}
    assert {text: encode(text) for text in expected} == {text: [index] for text, index in expected.items()}
    assert qwen_tokenizer().convert_tokens_to_ids([*CONTROL, ADDED_TEXT]) == [151643, 151644, 151645, 151657]
    table = qwen_encoder().table
    assert (table.copy_head, table.copy_close, table.gen_head) == ([27, 8560, 5128, 428], [4639], [27, 4370, 397])
    assert (table.gen_end, table.gen_close, table.digit_group) == ([522, 4370], [397], 1)


def test_the_tokenizers_differ_in_what_the_table_must_resolve():
    join = {kind: len(encoder_of(kind).text.encode("</")) for kind in SUPPORTED}
    assert join["split_slash"] == 2
    assert join["byte_level"] == 1
    assert {kind: encoder_of(kind).table.digit_group for kind in SUPPORTED} == {
        **dict.fromkeys(SUPPORTED, 1),
        "three_digits": 3,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_have_one_encoding_and_it_is_the_tokenizers_own(kind):
    encoder = get_encoder(kind)
    seen = set()
    for value in [*range(1, 1200), 9999, 10_000, 123_456, 1_000_000]:
        ids = encoder.number(value)
        assert encoder.text.decode(ids) == str(value).encode()
        assert kind == "metaspace" or ids == encoder.text.encode(str(value))
        seen.add(tuple(ids))
    assert len(seen) == 1203


def test_numbers_grouped_from_the_right_fall_back_to_single_digits():
    spec = json.loads(tokenizer_of("three_digits").backend_tokenizer.to_str())
    thousands = {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}(?=(\p{N}{3})*(?!\p{N}))"}, "behavior": "Isolated"}
    spec["pre_tokenizer"]["pretokenizers"].insert(0, thousands | {"invert": False})
    fast = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(spec)), eos_token="<|im_end|>")
    encoder = ProgramEncoder(fast)
    assert len(encoder.text.encode("1234")) == 2
    assert encoder.table.digit_group == 1
    assert encoder.text.decode(encoder.number(1234)) == b"1234"
    assert len(encoder.number(1234)) == 4


# Prompts


def row(before, after, instruction="Change it."):
    program = render(build_oracle(before, after))
    return OracleRow("x", "jsonl", "train", "x", instruction, before, after, program, [], {})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("style", ["numbered", "plain"])
@pytest.mark.parametrize("splice", ["full", "none"])
def test_the_prompt_is_a_prefix_of_the_training_ids(kind, style, splice):
    encoder = get_encoder(kind)
    example = row("one\ntwo <|im_end|>\n\nthree", "one\n2\n\nthree\n<|im_start|>")
    prompt = encoder.prompt(render_prompt(example.instruction, example.before, style))
    input_ids, regions = encode_row(encoder, example, style, splice)
    assert input_ids[: len(prompt)] == prompt
    assert regions[: len(prompt)] == [UNSUPERVISED] * len(prompt)
    assert regions[len(prompt)] != UNSUPERVISED
    rest = [index for _, ids in encoder.segments(parse(example.program), example.before, splice) for index in ids]
    assert input_ids[len(prompt) :] == rest
    assert rest[-1] == encoder.tokenizer.eos_token_id
    assert not control_ids(encoder) & set(rest[:-1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_that_spells_control_tokens_adds_none_to_the_prompt(kind):
    encoder = get_encoder(kind)
    control = control_ids(encoder)

    @settings(max_examples=40, deadline=None)
    @given(texts, texts)
    def check(instruction, document):
        if kind == "metaspace":
            instruction, document = instruction.replace("\u2581", ""), document.replace("\u2581", "")
        plain = [index for index in encoder.prompt(render_prompt("x", "y")) if index in control]
        ids = encoder.prompt(render_prompt(instruction, document))
        assert [index for index in ids if index in control] == plain
        for message in render_prompt(instruction, document)[1:]:
            assert message["content"].encode() in encoder.text.decode(ids)

    check()


@pytest.mark.parametrize("kind", ["byte_level", "split_slash", "three_digits", "nfc", "qwen"])
def test_a_chat_prompt_is_what_the_chat_template_gives(kind):
    tokenizer = get_encoder(kind).tokenizer
    messages = render_prompt("Rename it.", "one\ntwo\n")
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = get_encoder(kind).prompt(messages)
    assert tokenizer.decode(ids) == rendered
    if kind == "qwen":
        assert ids == tokenizer(rendered, add_special_tokens=False)["input_ids"]


def test_a_template_without_a_system_role_gets_the_task_in_the_first_message():
    encoder = encoder_of("metaspace")
    messages = render_prompt("Rename it.", "one\ntwo\n")
    ids = encoder.prompt(messages)
    assert ids[0] == encoder.tokenizer.bos_token_id
    assert ids.count(encoder.tokenizer.bos_token_id) == 1
    text = encoder.text.decode(ids).decode()
    assert f"{messages[0]['content']}\n\n{messages[1]['content']}" in text
    assert text.count("[INST]") == 1


def test_without_a_chat_template_the_messages_follow_each_other():
    messages = render_prompt("Rename it.", "one\ntwo\n")
    text = encoder_of("no_template").text.decode(encoder_of("no_template").prompt(messages)).decode()
    assert text == f"{messages[0]['content']}\n\n{messages[1]['content']}\n\n"


def test_a_template_that_drops_a_message_is_refused():
    template = "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}{% endif %}{% endfor %}"
    with pytest.raises(TokenizerError, match="drops a message") as caught:
        ProgramEncoder(byte_level_tokenizer(chat_template=template)).prompt(render_prompt("x", "y"))
    assert caught.value.reason == "unsupported_tokenizer"


@pytest.mark.parametrize("added", [pytest.param("<think>\n\n</think>\n\n", id="train-04")])
def test_a_template_that_adds_text_only_for_the_reply_keeps_the_prompt_a_prefix(added):
    thinking = CHATML.replace("assistant\n{% endif %}", f"assistant\n{added}{{% endif %}}")
    encoder = ProgramEncoder(byte_level_tokenizer(chat_template=thinking))
    example = row("one\ntwo", "one\n2")
    prompt = encoder.prompt(render_prompt(example.instruction, example.before))
    assert encoder.text.decode(prompt).endswith(added.encode())
    assert encode_row(encoder, example, "numbered", "none")[0][: len(prompt)] == prompt
