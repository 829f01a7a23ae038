"""Loading models by name: folders, adapters and GGUF files give the same function, and mistakes are named."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from small_models import ADDED_TEXT, CHATML, CONTROL, byte_level_tokenizer, lossy_tokenizer, tiny_model

from decoding import loading
from decoding.commandline import UserError
from decoding.encoder import ProgramEncoder
from decoding.loading import base_identity, load_encoder, load_model, load_text_tokenizer, load_tokenizer, local_name
from decoding.tokens import TextTokenizer

IDS = torch.tensor([[5, 60, 7, 300, 2]])
TEXT = "def add(a, b):\n    return a + b  # <|im_end|> e\u0301 123\n"


def logits(model):
    with torch.inference_mode():
        return model(input_ids=IDS).logits[0]


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny_model("qwen2", len(tokenizer), seed=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer, model):
    path = tmp_path_factory.mktemp("hub") / "model"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def adapter(tmp_path_factory, tokenizer, model, folder):
    """An adapter folder, and the logits of the adapted model before any merging."""
    from peft import LoraConfig, get_peft_model

    path = tmp_path_factory.mktemp("adapter") / "lora"
    base = tiny_model("qwen2", len(tokenizer), seed=0)
    base.config._name_or_path = base.name_or_path = str(folder)
    adapted = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"]))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.3)
    adapted.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path, logits(adapted.eval())


def write_gguf(path: Path, tokenizer, model) -> Path:
    """Write a Qwen2 model and its byte-level vocabulary as llama.cpp does."""
    gguf = pytest.importorskip("gguf", reason="writing a GGUF file needs the gguf package")
    config = model.config
    writer = gguf.GGUFWriter(str(path), "qwen2")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    spec = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    assert list(range(len(tokens))) == sorted(ids.values())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in CONTROL else 4 if token == ADDED_TEXT else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in spec["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(CHATML)
    parts = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, weight in model.state_dict().items():
        stem, kind = name.rsplit(".", 1)
        if match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem):
            stem = f"blk.{match[1]}.{parts[match[2]]}"
        else:
            stem = whole[stem]
        writer.add_tensor(f"{stem}.{kind}", weight.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    path = tmp_path / "cache"
    monkeypatch.setenv("CAD_CACHE_DIR", str(path))
    return path


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory, tokenizer, model):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tokenizer, model)


# Folders


def test_a_folder_as_the_hub_has_it_loads_for_inference(folder, model):
    loaded = load_model(str(folder))
    assert not loaded.training
    if not torch.cuda.is_available():
        assert loaded.dtype == torch.float32
    assert torch.equal(logits(load_model(str(folder), device="cpu", dtype=torch.float32)), logits(model))
    assert load_model(str(folder), dtype=torch.bfloat16).dtype == torch.bfloat16


def test_the_tokenizer_of_a_folder_is_the_one_saved_there(folder, tokenizer):
    loaded = load_tokenizer(str(folder))
    assert loaded.eos_token == tokenizer.eos_token
    assert loaded.chat_template == tokenizer.chat_template
    assert load_text_tokenizer(str(folder)).encode(TEXT) == TextTokenizer(tokenizer).encode(TEXT)
    assert ProgramEncoder(loaded).table == ProgramEncoder(tokenizer).table


def test_a_home_folder_may_be_written_with_a_tilde(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert local_name("~/model") == str(folder)
    assert load_tokenizer("~/model").eos_token == "<|im_end|>"
    load_model("~/model")


@pytest.mark.parametrize(
    "name", ["/nowhere/model", "./nowhere", "../nowhere", "~/nowhere-at-all", "runs/nowhere/final", "nowhere/x.gguf"]
)
@pytest.mark.parametrize("load", [load_model, load_tokenizer, load_text_tokenizer])
def test_a_path_that_is_not_there_is_named(name, load):
    with pytest.raises(UserError, match=re.escape(name)) as caught:
        load(name)
    assert "\n" not in str(caught.value)


def test_a_hub_name_is_left_to_the_hub():
    assert local_name("Qwen/Qwen2.5-0.5B") == "Qwen/Qwen2.5-0.5B"
    assert local_name("gpt2") == "gpt2"


def test_a_hub_name_that_cannot_be_fetched_is_named(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for load, what in ((load_model, "model"), (load_tokenizer, "tokenizer")):
        with pytest.raises(UserError, match=f"cannot load the {what} 'nobody/nothing-{what}'"):
            load(f"nobody/nothing-{what}")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "cut off", "empty"])
def test_a_damaged_model_folder_is_named(tmp_path, folder, file, damage):
    copy = tmp_path / "damaged"
    shutil.copytree(folder, copy)
    content = (copy / file).read_bytes()
    (copy / file).unlink()
    if damage != "missing":
        (copy / file).write_bytes(content[: len(content) // 2] if damage == "cut off" else b"")
    with pytest.raises(UserError, match="damaged") as caught:
        load_model(str(copy))
    assert "\n" not in str(caught.value)


def test_a_damaged_tokenizer_is_named(tmp_path, folder):
    copy = tmp_path / "damaged"
    shutil.copytree(folder, copy)
    (copy / "tokenizer.json").write_text((copy / "tokenizer.json").read_text()[:500])
    with pytest.raises(UserError, match="damaged"):
        load_tokenizer(str(copy))


def test_what_a_model_is_changes_with_any_of_its_weights(tmp_path, folder, monkeypatch):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    identity = base_identity(str(folder))
    assert base_identity(str(copy)) == identity  # wherever it lies
    weights, content = copy / "model.safetensors", (folder / "model.safetensors").read_bytes()
    for pieces, piece in ((64, 1 << 20), (3, 1000)):  # all of the file, and a part as of a large one
        monkeypatch.setattr(loading, "_PIECES", pieces)
        monkeypatch.setattr(loading, "_PIECE", piece)
        weights.write_bytes(content)
        identity = base_identity(str(copy))
        for at in (0, len(content) // 2, len(content) - 1):
            weights.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            assert base_identity(str(copy)) != identity, at
        weights.write_bytes(content + b"\0")
        assert base_identity(str(copy)) != identity


def test_a_hub_model_is_known_by_its_commit(monkeypatch):
    commit = "0123456789abcdef" * 2 + "01234567"
    monkeypatch.setattr("transformers.utils.cached_file", lambda *_: f"/cache/snapshots/{commit}/config.json")
    assert base_identity("some/model") == commit
    monkeypatch.setattr("transformers.utils.cached_file", lambda *_: "/elsewhere/config.json")
    assert base_identity("some/model") is None


# Adapters


def test_an_adapter_loads_merged_on_the_base_its_configuration_names(adapter, model):
    path, expected = adapter
    loaded = load_model(str(path), device="cpu")
    assert type(loaded).__name__ == "Qwen2ForCausalLM"
    assert not any("lora" in name for name, _ in loaded.named_parameters())
    torch.testing.assert_close(logits(loaded), expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(logits(loaded), logits(model), atol=0.1)
    assert load_tokenizer(str(path)).eos_token == "<|im_end|>"


def test_the_base_of_an_adapter_can_be_given(tmp_path, adapter, folder):
    path, expected = adapter
    copy = tmp_path / "lora"
    shutil.copytree(path, copy)
    config = json.loads((copy / "adapter_config.json").read_text())
    (copy / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "/nowhere/base"}))
    with pytest.raises(UserError, match="/nowhere/base"):
        load_model(str(copy))
    torch.testing.assert_close(logits(load_model(str(copy), base=str(folder))), expected, atol=1e-4, rtol=1e-4)


def test_an_adapter_on_a_gguf_base_loads(adapter, gguf_file, cache):
    path, expected = adapter
    loaded = logits(load_model(str(path), base=str(gguf_file), device="cpu"))
    torch.testing.assert_close(loaded, expected, atol=0.5, rtol=0.05)  # the base is kept in bfloat16


def test_an_adapter_in_a_home_folder_loads_merged(adapter, monkeypatch):
    path, expected = adapter
    monkeypatch.setenv("HOME", str(path.parent))
    loaded = load_model("~/lora", device="cpu")
    assert not any("lora" in name for name, _ in loaded.named_parameters())
    torch.testing.assert_close(logits(loaded), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("damage", ["not json", "no base", "no weights", "cut weights"])
def test_a_damaged_adapter_is_named(tmp_path, adapter, damage):
    copy = tmp_path / "damaged"
    shutil.copytree(adapter[0], copy)
    config = copy / "adapter_config.json"
    weights = copy / "adapter_model.safetensors"
    if damage == "not json":
        config.write_text(config.read_text()[:40])
    elif damage == "no base":
        config.write_text(json.dumps({"peft_type": "LORA"}))
    elif damage == "no weights":
        weights.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UserError, match="damaged"):
        load_model(str(copy))


# GGUF files


def test_a_gguf_file_loads_as_the_model_and_tokenizer_it_holds(gguf_file, cache, model, tokenizer):
    loaded = load_model(str(gguf_file), device="cpu")
    assert type(loaded).__name__ == "Qwen2ForCausalLM"
    halved = tiny_model("qwen2", len(tokenizer), seed=0)
    for weight in halved.parameters():
        weight.data = weight.data.to(torch.bfloat16).float()
    torch.testing.assert_close(logits(loaded), logits(halved), atol=1e-4, rtol=1e-4)
    read = load_tokenizer(str(gguf_file))
    assert (read.eos_token, read.chat_template) == (tokenizer.eos_token, tokenizer.chat_template)
    assert read.get_vocab() == tokenizer.get_vocab()
    assert load_text_tokenizer(str(gguf_file)).encode(TEXT) == TextTokenizer(tokenizer).encode(TEXT)
    assert ProgramEncoder(read).table == ProgramEncoder(tokenizer).table


def test_a_gguf_file_is_converted_once_to_a_folder_that_can_be_trained_and_saved(
    gguf_file, cache, monkeypatch, tmp_path
):
    converted = Path(local_name(str(gguf_file)))
    assert converted.parent == cache / "gguf"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in converted.iterdir()}
    monkeypatch.setattr(loading, "_convert", lambda *_: pytest.fail("converted twice"))
    assert local_name(str(gguf_file)) == str(converted)
    assert [path.name for path in converted.parent.iterdir()] == [converted.name]
    load_model(str(gguf_file)).save_pretrained(tmp_path / "again")


def test_a_gguf_file_changed_under_the_same_name_is_converted_again(tmp_path, cache, monkeypatch):
    """Files of one architecture agree in their metadata and size, and differ in their weights."""
    monkeypatch.setattr(loading, "_convert", lambda file, folder: (folder / "last").write_bytes(file.read_bytes()[-1:]))
    path, identities = tmp_path / "model.gguf", set()
    for last in (b"1", b"2"):
        path.write_bytes(b"\0" * (1 << 21) + last)
        assert (Path(local_name(str(path))) / "last").read_bytes() == last
        identities.add(base_identity(str(path)))
    assert len(identities) == 2


@pytest.mark.parametrize("kept", [0, 3, 40, 4000, -5000])
def test_a_damaged_gguf_file_is_named_and_leaves_nothing_behind(tmp_path, gguf_file, cache, kept):
    damaged = tmp_path / "damaged.gguf"
    content = gguf_file.read_bytes()
    damaged.write_bytes(content[:kept])
    assert len(content) > 10_000
    for load in (load_model, load_tokenizer):
        with pytest.raises(UserError, match="damaged.gguf") as caught:
            load(str(damaged))
        assert "\n" not in str(caught.value)
    assert list((cache / "gguf").iterdir()) == []


def test_a_file_that_is_no_gguf_is_named(tmp_path, cache):
    path = tmp_path / "page.gguf"
    path.write_text("<html>not found</html>\n" * 100)
    with pytest.raises(UserError, match="page.gguf"):
        load_model(str(path))


def test_two_conversions_at_once_end_with_one_whole_folder(gguf_file, cache, monkeypatch):
    real = loading._convert

    def overtaken(file, folder):
        monkeypatch.setattr(loading, "_convert", real)
        local_name(str(gguf_file))  # the other process finishes while this one converts
        real(file, folder)

    monkeypatch.setattr(loading, "_convert", overtaken)
    converted = Path(local_name(str(gguf_file)))
    assert [path.name for path in converted.parent.iterdir()] == [converted.name]
    load_model(str(gguf_file))


def test_a_tokenizer_that_changes_text_is_refused_in_one_line_wherever_it_is_named(tmp_path):
    lossy_tokenizer().save_pretrained(tmp_path)
    for load in (load_text_tokenizer, load_encoder):
        with pytest.raises(UserError, match=f"{re.escape(str(tmp_path))}: (unsupported_tokenizer|tokenizer_lossy)"):
            load(str(tmp_path))
