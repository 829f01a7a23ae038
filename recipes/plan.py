"""Estimate memory and time of a training run before it: give it the recipe and the keys that the run will get.

    python recipes/plan.py recipe=sft_combined
    python recipes/plan.py recipe=qlora_7b micro_batch=2 model=Qwen/Qwen2.5-Coder-7B-Instruct
    python recipes/plan.py recipe=sft_combined recipes/configs/quickstart.yaml
    python recipes/plan.py model=FOLDER memory=80 measure=false          # for a machine of 80 GB that is not this one

Memory by part (weights, gradients, optimiser, activations, head) is estimated from the model's configuration, for the
settings given and for others that take less; on a CPU the process itself, interpreter and libraries, is a part as large
as this one's. The run's real trainer takes a few steps in a process of its own, the longest micro-batches of the data
first: its peak stands beside the estimate, and decides whether the run fits. Time is that of these steps, by tokens;
the floor is what the matrix products take at this machine's rate. measure=false leaves the steps out.

The model need not have weights: of a folder with a configuration and a tokenizer alone, random weights are made for the
steps (on disk, 2 bytes a parameter, and removed).

Estimates count one process. Held-out evaluation and checkpoints are not in the time.
"""

from __future__ import annotations

import copy
import importlib
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cad_train.config import TrainConfig, require
from decoding.commandline import UserError, run
from decoding.console import markdown_table

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

    from cad_train.examples import Examples

_LOGIT_COPIES = 3  # of the supervised positions, in float32: logits, log-probabilities, and their gradient
_BLOCK_8BIT = 256  # values that share a scale in an 8-bit optimiser
_SMALLEST_8BIT = 4096  # tensors of fewer values keep 32-bit states
_NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)  # bytes a weight: 4 bits, an 8-bit scale for 64 of them, a scale for 256 scales


@dataclass(frozen=True)
class Memory:
    """Bytes of a training step by part, at its peak: the end of the longest micro-batch's forward.

    ``process`` is what a process holds before it has any tensors; on a GPU, where only tensors are counted, 0.
    """

    weights: int
    gradients: int
    optimiser: int
    activations: int
    head: int
    process: int = 0

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(getattr(self, part.name) for part in fields(self))


@dataclass(frozen=True)
class Sharding:
    """ZeRO over ``devices``: stage 2 shares gradients and optimiser state out, stage 3 the weights too."""

    stage: int = 0
    devices: int = 1


@dataclass(frozen=True)
class MicroBatch:
    """What a forward takes: ``rows`` of ``width`` tokens, ``supervised`` targets in all.

    Rows of several lengths need a mask of ``[rows, width, width]``. ``documents`` are the lengths of those that stand
    in one row without padding.
    """

    rows: int
    width: int
    supervised: int
    documents: tuple[int, ...] = ()


def schema_of(recipe: str) -> type[TrainConfig]:
    """Return the settings of ``recipe`` with those of a plan.

    Raises:
        UserError: there is no such recipe, or it trains with other settings than TrainConfig's.
    """
    folder = Path(__file__).resolve().parent
    names = [path.stem for path in sorted(folder.glob("*.py")) if "TrainConfig)" in path.read_text(encoding="utf-8")]
    names = [name for name in names if name not in ("plan", "train_bench")]
    if recipe not in names:
        raise UserError(f"recipe={recipe}: choose from {', '.join(names)}")
    base = importlib.import_module(f"recipes.{recipe}").Config

    @dataclass
    class Config(base):
        recipe: str = "sft_combined"  # whose settings, by the name of its file
        memory: float | None = None  # GB of the device planned for; default this machine's
        devices: int = 8  # of the ZeRO estimates
        measure: bool = True  # take a few real steps here
        steps: int = 2  # of these, how many to time, after the one on the longest examples

        def __post_init__(self) -> None:
            super().__post_init__()
            require(self, "at least 1", lambda value: value >= 1, "devices", "steps")
            require(self, "above 0, and finite", lambda value: 0 < value < math.inf, "memory")

    return Config


def main(config) -> None:
    """Estimate, measure, and print."""
    import torch
    from transformers import AutoConfig

    from cad_train.trainer import computes_in_bf16
    from decoding.loading import cannot_load, local_name
    from recipes.train_bench import load_examples, peak_memory

    on_cpu = not torch.cuda.is_available()
    process = peak_memory() if on_cpu else 0  # it has imported what a run imports, and made nothing yet
    in_bf16 = computes_in_bf16(config, on_cpu)
    folder = local_name(config.model)
    try:
        model = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(cannot_load("model", config.model, error)) from None
    _, examples = load_examples(config)
    sizes = example_sizes(examples)
    longest = longest_micro_batch(sizes, config)
    total, trainable = parameters(model, config)
    steps = config.max_steps or round(config.epochs * -(-len(examples) // config.batch_size))
    print(
        f"{config.model}: {total / 1e6:.1f} million parameters, {trainable / 1e6:.1f} million trained; weights in "
        f"{config.dtype}, computed in {'bfloat16' if in_bf16 else 'float32'}"
    )
    print(
        f"{len(examples)} examples, {steps} steps of {config.batch_size}; the longest micro-batch is {longest.rows} x "
        f"{longest.width} tokens, {longest.supervised} supervised"
    )
    available = int(config.memory * 1e9) if config.memory else device_memory()
    plans = {
        name: replace(memory_parts(model, other, longest_micro_batch(sizes, other), in_bf16, sharding), process=process)
        for name, (other, sharding) in alternatives(config, config.devices).items()
    }
    chosen = plans["as given"]
    measured = None
    try:
        if config.measure and chosen.total <= device_memory():
            print(f"taking {config.steps + 1} steps to measure", flush=True)
            measured = _measure(config, folder, examples)
    finally:  # what is killed for its memory leaves the estimate to read
        peak = measured["peak_bytes"] if measured else None
        print(memory_text(plans, peak, available, on_cpu))
    if config.measure and not measured:
        print("\nNo steps taken: by the estimate they do not fit this machine.")
    print("\n" + _time_text(config, model, sizes, steps, measured, "cpu" if on_cpu else "cuda"))


def longest_micro_batch(sizes: list[tuple[int, int]], config: TrainConfig) -> MicroBatch:
    """Return the micro-batch of the longest of examples of ``sizes``: all in one row where batches have no padding."""
    pairs = sorted(sizes, reverse=True)[: config.micro_batch]
    supervised = sum(targets for _, targets in pairs)
    if config.padding_free:
        documents = tuple(length for length, _ in pairs)
        return MicroBatch(1, sum(documents), supervised, documents)
    return MicroBatch(len(pairs), pairs[0][0], supervised)


def example_sizes(examples: Examples) -> list[tuple[int, int]]:
    """Return tokens and targets of every example."""
    return [(len(regions), sum(region >= 0 for region in regions)) for regions in examples.dataset["regions"]]


# ---------------------------------------------------------------------------------------------------------------------
# Memory


def parameters(model: PretrainedConfig, config: TrainConfig) -> tuple[int, int]:
    """Return the number of all parameters, adapters included, and of those that are trained."""
    shapes = _shapes(model, config)
    counts = {kind: sum(rows * columns for rows, columns in tensors) for kind, tensors in shapes.items()}
    return sum(counts.values()), counts["trained"]


def _shapes(model: PretrainedConfig, config: TrainConfig) -> dict[str, list[tuple[int, int]]]:
    """Sizes, as (rows, columns) or (values, 1), of tensors that are trained, frozen, and quantised to 4 bits."""
    import torch
    from transformers import AutoModelForCausalLM

    from cad_train.floor import architecture

    with torch.device("meta"):
        tensors = [(tensor.numel(), 1) for tensor in AutoModelForCausalLM.from_config(model).parameters()]
    if config.adapter == "full":
        return {"trained": tensors, "frozen": [], "quantised": []}
    products = list(architecture(model).products.elements())
    adapters = [pair for rows, columns in products for pair in ((config.lora_r, rows), (columns, config.lora_r))]
    adapters += [(columns, 1) for _, columns in products] if config.dora else []
    if config.adapter == "lora":
        return {"trained": adapters, "frozen": tensors, "quantised": []}
    body = sum(rows * columns for rows, columns in products)
    rest = sum(values for values, _ in tensors) - body
    return {"trained": adapters, "frozen": [(rest, 1)], "quantised": [(body, 1)]}


def memory_parts(
    model: PretrainedConfig, config: TrainConfig, batch: MicroBatch, in_bf16: bool, sharding: Sharding = Sharding()
) -> Memory:
    """Estimate the bytes of a step by part, for one device.

    Weights, gradients and optimiser state follow from the parameters' number and type: AdamW keeps two values of the
    parameter's type for each, in 8 bits two bytes and a scale for 256. Under ZeRO in bfloat16, DeepSpeed's weights and
    gradients take 2 bytes, and its optimiser state 12, with a float32 copy of the weights. Activations are counted on
    tensors without memory (``saved_bytes``). The head counts three float32 copies of the supervised logits.
    """
    shapes = _shapes(model, config)
    sizes = {kind: [rows * columns for rows, columns in tensors] for kind, tensors in shapes.items()}
    stored = 2 if config.dtype == "bfloat16" else 4
    # Adapters are trained in float32, over a quantised base in bfloat16: PEFT's and TRL's doing.
    own = {"full": stored, "lora": 4, "qlora": 2}[config.adapter]
    trained = sum(sizes["trained"])
    weights = own * trained + stored * sum(sizes["frozen"]) + int(_NF4 * sum(sizes["quantised"]))
    gradients = own * trained
    optimiser = sum(_optimiser_bytes(size, own, config.optimizer) for size in sizes["trained"])
    if sharding.stage:
        if in_bf16:
            weights, gradients, optimiser = 2 * sum(map(sum, sizes.values())), 2 * trained, 12 * trained
        gradients, optimiser = gradients // sharding.devices, optimiser // sharding.devices
        if sharding.stage == 3:
            weights = weights // sharding.devices
    text = model.get_text_config()
    one, two = (saved_bytes(model, layers, batch, in_bf16, config) for layers in (1, 2))
    layer, outside = two - one, max(2 * one - two, 0)
    activations = outside + layer * text.num_hidden_layers
    if config.activation_checkpointing:
        kept = batch.rows * batch.width * text.hidden_size * stored  # a layer's input
        activations = outside + layer + kept * text.num_hidden_layers
    return Memory(weights, gradients, optimiser, activations, _LOGIT_COPIES * 4 * batch.supervised * text.vocab_size)


def _optimiser_bytes(size: int, own: int, optimizer: str) -> int:
    if optimizer.endswith("8bit"):
        return 2 * (size + 4 * -(-size // _BLOCK_8BIT)) if size >= _SMALLEST_8BIT else 8 * size
    return 2 * own * size


def saved_bytes(model: PretrainedConfig, layers: int, batch: MicroBatch, in_bf16: bool, config: TrainConfig) -> int:
    """Return the bytes that the body of the model, cut to ``layers``, keeps of ``batch`` for its backward pass.

    Every tensor is counted once, parameters not; in autocast, their bfloat16 copies are. The tensors have sizes and no
    memory, so that any model can be counted on any machine.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import AttentionInterface, AutoModelForCausalLM
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    from cad_train.documents import attend_by_document, document_arguments

    model = copy.deepcopy(model)
    text = model.get_text_config()
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]
    attention = config.attention
    if attention != "eager":
        # Without a mask under a name that transformers makes none for, as it makes none for rows without padding; sdpa
        # gets one here, since what has no values cannot be found to be without padding.
        AttentionInterface.register("sdpa_without_mask", sdpa_attention_forward)
        attention = "sdpa" if batch.rows > 1 or batch.documents else "sdpa_without_mask"
    with FakeTensorMode():
        network = AutoModelForCausalLM.from_config(
            model, dtype=getattr(torch, config.dtype), attn_implementation=attention, trust_remote_code=False
        )
        given: dict[str, Any] = {
            "input_ids": torch.zeros(batch.rows, batch.width, dtype=torch.long),
            "use_cache": False,
        }
        if batch.documents and attend_by_document(network):
            given |= document_arguments(batch.documents, network.device)
        with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
            return kept_for_backward(network, lambda: network.train().base_model(**given)[0])


def kept_for_backward(network: torch.nn.Module, forward: Callable[[], Any]) -> int:
    """Return the bytes of the tensors that ``forward`` keeps for its backward, parameters of ``network`` apart."""
    import torch

    own = {parameter.untyped_storage()._cdata for parameter in network.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage  # held, so that no other gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for storage in kept.values())


def alternatives(config: TrainConfig, devices: int) -> dict[str, tuple[TrainConfig, Sharding]]:
    """Return the settings as given and others to compare, by the keys that make them."""
    out: dict[str, tuple[TrainConfig, Sharding]] = {"as given": (config, Sharding())}
    flipped = not config.activation_checkpointing
    changes: list[dict[str, Any]] = [{"activation_checkpointing": flipped}, {"optimizer": "adamw_8bit"}]
    changes += [{"micro_batch": 1, "padding_free": False}, {"dtype": "bfloat16"}]
    changes += [{"adapter": "lora"}, {"adapter": "qlora"}]
    for change in changes:
        new = {key: value for key, value in change.items() if getattr(config, key) != value}
        if new:
            name = " ".join(f"{key}={str(value).lower()}" for key, value in new.items())
            out[name] = (replace(config, **new), Sharding())
    if config.adapter != "qlora":  # ZeRO does not share 4-bit weights out
        for stage in (2, 3):
            out[f"zero{stage}.yaml over {devices}"] = (config, Sharding(stage, devices))
    return out


def device_memory() -> int:
    """Return the bytes of memory of the GPU, or without one of this machine, as far as this process may use it."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(0).total_memory
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        if limit.exists() and (text := limit.read_text().strip()).isdigit():
            total = min(total, int(text))
    return total


def memory_text(plans: dict[str, Memory], peak: int | None, available: int, on_cpu: bool) -> str:
    """The estimates in a table, the measured ``peak`` beside its own, and what follows from them."""
    parts = [part.name for part in fields(Memory)]
    needed = {name: memory.total for name, memory in plans.items()} | ({"as given": peak} if peak else {})
    rows = [
        [
            name,
            *(_size(getattr(memory, part)) for part in parts),
            _size(memory.total),
            _size(peak) if peak and name == "as given" else "-",
            "yes" if needed[name] <= available else "no",
        ]
        for name, memory in plans.items()
    ]
    columns = ["settings", *parts, "total", "measured", "fits"]
    text = f"\nMemory of a device by part, estimated; it has {_size(available)}:\n\n{markdown_table(columns, rows)}"
    if peak:
        what = "of the process" if on_cpu else "of tensors on the GPU, on top of which CUDA takes some"
        text += f"\n\nMeasured peak {_size(peak)} {what}; estimated {_size(plans['as given'].total)}."
    if needed["as given"] > available:
        fitting = [name for name, size in needed.items() if size <= available]
        remedy = f"By the estimate these do: {'; '.join(fitting)}." if fitting else "None of these settings does."
        text += f"\n\nThe run as given will not fit: {_size(needed['as given'])} of {_size(available)}. {remedy}"
    return text


# ---------------------------------------------------------------------------------------------------------------------
# Time


def measured_examples(examples: Examples, config) -> list[dict[str, list[int]]]:
    """Return a step of the longest examples, longest first, then steps of examples of every length."""
    order = sorted(range(len(examples)), key=lambda number: -len(examples.dataset[number]["input_ids"]))
    wanted = config.batch_size * config.steps
    first = (order * -(-config.batch_size // len(order)))[: config.batch_size]
    spread = [order[at * len(order) // wanted] for at in range(wanted)]
    # Every timed step has its share of long ones.
    spread = [number for step in range(config.steps) for number in spread[step :: config.steps]]
    return [dict(examples.dataset[number]) for number in [*first, *spread]]


def _measure(config, folder: str, examples: Examples) -> dict[str, Any]:
    from recipes.train_bench import in_fresh_process, train_steps

    settings = {field.name: getattr(config, field.name) for field in fields(TrainConfig)}
    steps = TrainConfig(**settings | {"max_steps": config.steps + 1})
    with tempfile.TemporaryDirectory() as made:
        if Path(folder).is_dir() and not any(Path(folder).glob("*.safetensors")):
            print(f"\n{folder} has no weights: the steps are taken with random ones", flush=True)
            in_fresh_process(_save_random, folder, made)
            steps = replace(steps, model=made)
        return in_fresh_process(train_steps, "ours", steps, measured_examples(examples, config))


def _save_random(folder: str, out: str) -> None:
    """Save a model of the configuration in ``folder`` with random weights in bfloat16, and its tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from decoding.loading import load_tokenizer

    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, trust_remote_code=False).save_pretrained(out)
    load_tokenizer(folder).save_pretrained(out)


def _time_text(
    config,
    model: PretrainedConfig,
    sizes: list[tuple[int, int]],
    steps: int,
    measured: dict[str, Any] | None,
    device: str,
) -> str:
    import torch

    from cad_train.floor import architecture, matmul_rate, step_flops
    from cad_train.trainer import computes_in_bf16

    counted = step_flops(
        architecture(model),
        [length for length, _ in sizes],
        sum(targets for _, targets in sizes),
        lora_rank=None if config.adapter == "full" else config.lora_r,
        activation_checkpointing=config.activation_checkpointing,
    )
    in_bf16 = computes_in_bf16(config, device == "cpu") or config.dtype == "bfloat16"
    dtype = torch.bfloat16 if in_bf16 else torch.float32
    width = int(statistics.median(length for length, _ in sizes)) * config.micro_batch
    rate = matmul_rate(architecture(model), width, dtype, device)
    tokens = sum(length for length, _ in sizes)
    share = config.batch_size / len(sizes)  # of all examples, in a step
    floor = counted.total * share / rate
    lines = [
        f"A step of {config.batch_size} examples, {tokens * share:.0f} tokens, needs {counted.total * share / 1e9:.1f} "
        f"GFLOP (layers {counted.body / counted.total:.0%}, attention {counted.attention / counted.total:.0%}, "
        f"recomputed {counted.recomputed / counted.total:.0%}, head {counted.head / counted.total:.0%}); this machine "
        f"multiplies such matrices at {rate / 1e9:.1f} GFLOP/s: its floor is {floor:.2f} s, and the run's "
        f"{_clock(floor * steps)}."
    ]
    if measured:
        timed_tokens = sum(map(sum, measured["lengths"][1:]))
        step = sum(measured["seconds"][1:]) / timed_tokens * tokens * share
        lines.append(
            f"Measured on {config.steps} steps: {timed_tokens / sum(measured['seconds'][1:]):.1f} tokens/s, so "
            f"{step:.2f} s a step ({floor / step:.0%} of it is the floor) and {_clock(step * steps)} for {steps} steps."
        )
    return "\n".join(lines)


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e7 else f"{count / 1e6:.2f} MB"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def _named_recipe(arguments: list[str]) -> str:
    """The value of ``recipe=`` on a command line; the schema of all other keys depends on it."""
    for at, argument in enumerate(arguments):
        name, sign, value = argument.removeprefix("--").partition("=")
        if name == "recipe" and sign:
            return value
        if argument == "--recipe" and at + 1 < len(arguments):
            return arguments[at + 1]
    return "sft_combined"


if __name__ == "__main__":
    try:
        schema = schema_of(_named_recipe(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    run(main, schema, description=__doc__)
