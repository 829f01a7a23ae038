"""The model as a function of ragged pieces: several sequences, each at its own length, fed together in one forward.

The new tokens of all sequences are packed into one row ``[1, S]``, so that no linear layer computes padding and only
the hidden states that decide reach the language-model head. Keys and values live in a static buffer with a slot for
every sequence, written by (slot, position). Attention runs sequence by sequence, or, where shapes must be fixed, over
padded queries under a mask ``key <= position``.

Rolling back is free: a sequence's length lives with the caller, and what stands beyond it is masked until overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

Backend = Literal["packed", "graphs", "eager"]
_ATTENTION = "packed_sdpa"
# Over a cache these take one new id at a time (transformers 5.24), and give wrong logits for more.
_STEP_BY_STEP = ("mamba", "falcon_mamba", "recurrent_gemma")
_GROWTH = 256  # slots grow to a multiple of this many positions
_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # widths a CUDA graph is captured for


class Feed(NamedTuple):
    """New tokens of one sequence: ``ids`` go to ``slot`` from position ``start`` on; ``heads`` are the offsets in
    ``ids`` after which the logits are wanted."""

    slot: int
    start: int
    ids: list[int]
    heads: list[int]


class _Pieces:
    """Where the packed tokens of one forward belong: sequence by sequence, each attending to its own slot alone.

    One call a sequence computes no padding, of queries or of keys, which on a CPU costs most of a batch's attention.
    """

    def __init__(self, feeds: list[Feed], device: torch.device) -> None:
        self._device = device
        self._feeds = [(feed.slot, feed.start, len(feed.ids)) for feed in feeds]
        place = [(slot, position) for slot, start, n in self._feeds for position in range(start, start + n)]
        self.slots, self.positions = torch.tensor(place, device=device).unbind(1)
        self._masks: dict[tuple[int, int, int, int | None], torch.Tensor] = {}

    def attend(self, query, keys, values, scale: float | None, window: int | None) -> torch.Tensor:
        """Return ``[S, heads, size]`` for such a query; keys and values are ``[slots, key heads, capacity, size]``."""
        outputs, offset = [], 0
        for slot, start, count in self._feeds:
            key, value = (buffer[slot : slot + 1, :, : start + count] for buffer in (keys, values))
            outputs.append(self._attend_one(query[offset : offset + count], key, value, start, scale, window))
            offset += count
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend_one(self, query, key, value, start: int, scale: float | None, window: int | None) -> torch.Tensor:
        count, heads, size = query.shape
        if start == 0 and (window is None or count <= window):  # a prompt: the kernels' own causal mask
            query = query.transpose(0, 1)[None]
            grouped = heads > key.shape[1]
            out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=grouped)
            return out[0].transpose(0, 1)
        groups = heads // key.shape[1]
        mask = None if count == 1 and window is None else self._mask(start, count, groups, window)
        folded = F.scaled_dot_product_attention(_fold(query[None], groups), key, value, attn_mask=mask, scale=scale)
        return _unfold(folded, groups)[0]

    def _mask(self, start: int, count: int, groups: int, window: int | None) -> torch.Tensor:
        """Return ``[groups * count, start + count]``, True where a query may look; made once for all layers."""
        key = (start, count, groups, window)
        if key not in self._masks:
            keys = torch.arange(start + count, device=self._device)
            self._masks[key] = _visible(keys, keys[start:], window).repeat(groups, 1)
        return self._masks[key]


class _Padded:
    """The same at fixed shapes, for CUDA graphs: every slot is a row of attention, queries padded to one width.

    ``gather`` ``[slots, width]`` picks the packed token of every padded query, ``scatter`` ``[S]`` the padded query of
    every token; ``limits`` ``[slots, width]`` is the last position that a query sees.
    """

    def __init__(self, slots, positions, gather, scatter, limits, capacity: int) -> None:
        self.slots, self.positions = slots, positions
        self._gather, self._scatter, self._limits, self._capacity = gather, scatter, limits, capacity
        self._masks: dict[int | None, torch.Tensor] = {}

    def attend(self, query, keys, values, scale: float | None, window: int | None) -> torch.Tensor:
        """See ``_Pieces``."""
        groups = query.shape[1] // keys.shape[1]
        if window not in self._masks:
            positions = torch.arange(self._capacity, device=self._limits.device)
            self._masks[window] = _visible(positions, self._limits, window).repeat(1, groups, 1)[:, None]
        mask = self._masks[window]
        folded = F.scaled_dot_product_attention(
            _fold(query[self._gather], groups), keys, values, attn_mask=mask, scale=scale
        )
        return _unfold(folded, groups).flatten(0, 1)[self._scatter]


def _visible(keys: torch.Tensor, queries: torch.Tensor, window: int | None) -> torch.Tensor:
    """Return ``[..., queries, keys]``: whether a query at one position sees the key at another."""
    seen = keys <= queries[..., None]
    return seen if window is None else seen & (keys > queries[..., None] - window)


def _fold(query: torch.Tensor, groups: int) -> torch.Tensor:
    """``[batch, queries, heads, size]`` to ``[batch, key heads, groups * queries, size]``.

    Query heads that share a key head become more queries of it, so that grouped keys and values are never repeated:
    under a mask, torch's own grouping or a repeat costs 1.3 to 8 times as much on a CPU.
    """
    batch, queries, heads, size = query.shape
    split = query.view(batch, queries, heads // groups, groups, size).permute(0, 2, 3, 1, 4)
    return split.reshape(batch, heads // groups, groups * queries, size)


def _unfold(folded: torch.Tensor, groups: int) -> torch.Tensor:
    """The inverse of ``_fold``."""
    batch, key_heads, queries, size = folded.shape
    split = folded.view(batch, key_heads, groups, queries // groups, size).permute(0, 3, 1, 2, 4)
    return split.reshape(batch, queries // groups, key_heads * groups, size)


class _SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, ``[slots, heads, capacity, head size]``."""

    is_compileable = True

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        slots, capacity = self._cache.slots, self._cache.capacity
        self.keys = key_states.new_zeros(slots, key_states.shape[1], capacity, key_states.shape[3])
        self.values = value_states.new_zeros(slots, value_states.shape[1], capacity, value_states.shape[3])
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        layout = self._cache.layout
        for buffer, new in ((self.keys, key_states), (self.values, value_states)):
            buffer[layout.slots, :, layout.positions] = new[0].transpose(0, 1)
        return self.keys, self.values

    def grow(self, capacity: int) -> None:
        if self.is_initialized:
            self.keys, self.values = (F.pad(t, (0, 0, 0, capacity - t.shape[2])) for t in (self.keys, self.values))

    def copy(self, source: int, target: int, length: int) -> None:
        for buffer in (self.keys, self.values):
            buffer[target, :, :length] = buffer[source, :, :length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.capacity, 0

    def get_seq_length(self) -> int:
        return 0  # positions are always given

    def get_max_length(self) -> int:
        return self._cache.capacity


class SlotCache(Cache):
    """A static cache of ``slots`` sequences of any lengths; see the module's docstring."""

    def __init__(self, layers: int, slots: int) -> None:
        self.slots, self.capacity = slots, 0
        self.layout: _Pieces | _Padded | None = None
        super().__init__(layers=[_SlotLayer(self) for _ in range(layers)])

    def reserve(self, length: int) -> bool:
        """Make room for ``length`` positions in every slot; return whether the buffers moved."""
        if length <= self.capacity:
            return False
        self.capacity = -(-max(length, self.capacity * 3 // 2) // _GROWTH) * _GROWTH
        for layer in self.layers:
            layer.grow(self.capacity)
        return True


def _packed_attention(module, query, key, value, attention_mask, scaling=None, sliding_window=None, **kwargs):
    """Attention of packed queries ``[1, heads, S, size]`` over slot buffers; transformers' attention interface."""
    out = kwargs["packed_layout"].attend(query[0].transpose(0, 1), key, value, scaling, sliding_window)
    return out[None], None


AttentionInterface.register(_ATTENTION, _packed_attention)


class PackedForward:
    """Ragged forwards over a static slot cache.

    Args:
        slots: how many sequences may be in flight.
        graphs: capture a CUDA graph for every bucket of widths and replay it; needs a CUDA device.

    Raises:
        ValueError: the model's layers keep something other than keys and values, or a kind of attention that sdpa has
            not (score caps, sinks): such models decode with ``EagerForward``.
    """

    rolls_back = True

    def __init__(self, model: PreTrainedModel, slots: int, *, graphs: bool = False) -> None:
        self.model, self.slots = model, slots
        config = model.config.get_text_config()
        capped = getattr(config, "attn_logit_softcapping", None) is not None
        sinks = any(name.endswith("sinks") for name, _ in model.named_parameters())
        if _other_layers(model) or capped or sinks or not model._supports_attention_backend:
            raise ValueError(f"{type(model).__name__} does not decode with packed attention: use backend='eager'")
        self._config = config
        # One slot more than asked for takes the padding of bucketed widths.
        self.cache = SlotCache(config.num_hidden_layers, slots + graphs)
        self._graphs: dict[tuple[int, int, int], _Graph] | None = {} if graphs else None

    @torch.inference_mode()
    def __call__(self, feeds: list[Feed]) -> torch.Tensor:
        """Feed every sequence its tokens; return the wanted logits in order, ``[heads of all feeds, vocabulary]``."""
        length = max(feed.start + len(feed.ids) for feed in feeds)
        if self._graphs is not None:
            length = max(length, _BUCKETS[-1])  # the spare slot holds as much padding
        if self.cache.reserve(length) and self._graphs:
            self._graphs.clear()  # they hold the addresses of the old buffers
        packed, heads, offset = [], [], 0
        for feed in feeds:
            packed += feed.ids
            heads += [offset + head for head in feed.heads]
            offset += len(feed.ids)
        prompt = len(feeds) == 1 and feeds[0].start == 0
        if self._graphs is None or prompt or len(packed) > _BUCKETS[-1]:
            layout = _Pieces(feeds, self.model.device)
            return self._run(self._tensor([packed]), layout, self._tensor(heads))
        return self._replay(feeds, packed, heads)

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of slot ``source`` to ``target``."""
        for layer in self.cache.layers:
            layer.copy(source, target, length)

    def synchronize(self) -> None:
        """Return when all work is done; results that were fetched need no such wait."""
        _synchronize(self.model)

    def _run(self, ids: torch.Tensor, layout: _Pieces | _Padded, heads: torch.Tensor) -> torch.Tensor:
        self.cache.layout = layout
        with _attention(self._config):
            output = self.model(
                input_ids=ids,
                position_ids=layout.positions[None],
                cache=self.cache,
                use_cache=True,
                logits_to_keep=heads,
                packed_layout=layout,
            )
        return output.logits[0]

    def _replay(self, feeds: list[Feed], packed: list[int], heads: list[int]) -> torch.Tensor:
        """Run at bucketed widths: every slot is a row of attention, padding tokens go to the spare slot."""
        tokens = _bucket(len(packed))
        width = _bucket(max(len(feed.ids) for feed in feeds))
        wanted = _bucket(max(len(heads), 1))
        spare = self.slots
        gather = torch.zeros(self.slots + 1, width, dtype=torch.long)
        limits = torch.zeros(self.slots + 1, width, dtype=torch.long)
        slots, positions, scatter = [], [], []
        for feed in feeds:
            count, places = len(feed.ids), range(feed.start, feed.start + len(feed.ids))
            gather[feed.slot, :count] = torch.arange(len(slots), len(slots) + count)
            limits[feed.slot, :count] = torch.tensor(places)
            scatter += range(feed.slot * width, feed.slot * width + count)
            slots += [feed.slot] * count
            positions += places
        padding = tokens - len(packed)
        slots += [spare] * padding
        positions += range(padding)
        scatter += [spare * width] * padding
        inputs = {
            "ids": torch.tensor([packed + [0] * padding]),
            "slots": torch.tensor(slots),
            "positions": torch.tensor(positions),
            "gather": gather,
            "scatter": torch.tensor(scatter),
            "limits": limits,
            "heads": torch.tensor(heads + [0] * (wanted - len(heads))),
        }
        key = (tokens, width, wanted)
        if key not in self._graphs:
            self._graphs[key] = _Graph(self._run_bucket, {n: t.to(self.model.device) for n, t in inputs.items()})
        return self._graphs[key](inputs)[: len(heads)]

    def _run_bucket(self, ids: torch.Tensor, heads: torch.Tensor, **places: torch.Tensor) -> torch.Tensor:
        return self._run(ids, _Padded(**places, capacity=self.cache.capacity), heads)

    def _tensor(self, values: list) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.model.device)


class _Graph:
    """A captured CUDA graph with its static inputs. On a CPU it calls the function: same arithmetic, nothing saved."""

    def __init__(self, function, inputs: dict[str, torch.Tensor]) -> None:
        self._function, self._inputs = function, inputs
        self._graph = None
        if inputs["ids"].is_cuda:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # lazy initialisation must not be captured
                for _ in range(2):
                    function(**inputs)
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._output = function(**inputs)

    def __call__(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        for name, value in inputs.items():
            self._inputs[name].copy_(value, non_blocking=True)
        if self._graph is None:
            return self._function(**self._inputs)
        self._graph.replay()
        return self._output


class EagerForward:
    """One sequence at a time over transformers' own cache and attention: any causal LM, and the paper's setting.

    Attributes:
        rolls_back: whether a feed may start before the end of the last one; a recurrent state cannot be undone.
    """

    slots = 1

    def __init__(self, model: PreTrainedModel) -> None:
        if model.config.model_type in _STEP_BY_STEP:
            raise ValueError(
                f"{type(model).__name__} gets several new ids over a cache wrong in transformers: it cannot decode here"
            )
        self.model = model
        self._cache, self._length = None, 0
        self.rolls_back = not _other_layers(model)

    @torch.inference_mode()
    def __call__(self, feeds: list[Feed]) -> torch.Tensor:
        """As ``PackedForward``, for a single feed that starts at, or before, the end of the last one."""
        (feed,) = feeds
        if feed.start == 0:
            # Without the configuration, layers with a window keep all their keys, and can be cropped; masks bound them.
            self._cache = DynamicCache() if self.rolls_back else DynamicCache(config=self.model.config)
        elif feed.start < self._length:
            self._cache.crop(feed.start - self._length)
        self._length = feed.start + len(feed.ids)
        output = self.model(
            input_ids=torch.tensor([feed.ids], device=self.model.device),
            cache=self._cache,
            use_cache=True,
            logits_to_keep=torch.tensor(feed.heads, device=self.model.device, dtype=torch.long),
        )
        return output.logits[0]

    def synchronize(self) -> None:
        """As ``PackedForward``."""
        _synchronize(self.model)


def make_forward(model: PreTrainedModel, slots: int, backend: Backend | None) -> PackedForward | EagerForward:
    """Return the forward for ``backend``; None means CUDA graphs on a CUDA device, else packed, else (a model that
    packed attention does not serve, one sequence) eager.

    Raises:
        ValueError: a backend that does not serve this model, or cannot hold ``slots`` sequences.
    """
    if backend is None:
        backend = "graphs" if model.device.type == "cuda" else "packed"
        try:
            return PackedForward(model, slots, graphs=backend == "graphs")
        except ValueError:
            if slots > 1:
                raise
            return EagerForward(model)
    if backend == "eager":
        if slots > 1:
            raise ValueError(f"backend='eager' decodes one edit at a time, not {slots}: use batch_size=1")
        return EagerForward(model)
    return PackedForward(model, slots, graphs=backend == "graphs")


def _other_layers(model: PreTrainedModel) -> set[str]:
    """Return the kinds of layers that keep something other than keys and values."""
    config = model.config.get_text_config()
    return set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}


def _synchronize(model: PreTrainedModel) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


def _bucket(count: int) -> int:
    return next(size for size in _BUCKETS if size >= count)


@contextmanager
def _attention(config) -> Iterator[None]:
    """Have the model's layers call ``_packed_attention``; other users of the model keep theirs."""
    kept = config._attn_implementation
    config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = kept
