"""Sizes of the vision-language models that can be planned for, and the parameters and tokens that follow from them.

Numbers are those of each model's ``config.json`` on the hub. The counts equal transformers' own models
(tests/plan/test_architecture.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vtcli.errors import ConfigError, InputError
from vtcli.foreign import load_json, read_file
from vtcli.store.images import smart_resize


@dataclass(frozen=True)
class Text:
    """A decoder of the kind of Qwen2.5, Qwen3 or Qwen3.5: grouped-query attention, or linear attention in some layers,
    gated MLP or experts, RMSNorm."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int  # of the MLP, or of an expert
    tied: bool  # the head is the embedding
    qkv_bias: bool = True  # Qwen2.5
    qk_norm: bool = False  # Qwen3
    experts: int = 0  # of a layer; 0: one MLP
    chosen: int = 1  # experts that compute a token
    shared: int = 0  # width of the expert that computes every token: Qwen3.5
    gated: bool = False  # attention's output is gated, by as many numbers as its queries have: Qwen3.5
    linear: int = 0  # layers of linear attention, in place of attention
    linear_heads: int = 0  # of their queries and keys
    linear_value_heads: int = 0
    linear_size: int = 0  # numbers of one of these heads

    @property
    def attending(self) -> int:
        """Layers with keys and values."""
        return self.layers - self.linear

    def layers_of(self, target: str) -> int:
        """Layers that have a matrix of ``sides``."""
        return self.attending if target in ("q_proj", "k_proj", "v_proj", "o_proj") else self.layers

    @property
    def q(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Matrix entries of a layer that compute a token: each is one multiply-add. The mean, where layers differ."""
        return (self.attending * self._attention + self.linear * self._linear) // self.layers + self._mlp

    @property
    def _attention(self) -> int:
        return 2 * self.hidden * (self.q + self.kv) + (self.hidden * self.q if self.gated else 0)

    @property
    def _linear(self) -> int:
        keys, values = (heads * self.linear_size for heads in (self.linear_heads, self.linear_value_heads))
        mixed = 2 * keys + values
        convolution = 4 * mixed
        return self.hidden * (mixed + 2 * values + 2 * self.linear_value_heads) + convolution

    @property
    def _mlp(self) -> int:
        shared = self.hidden * (3 * self.shared + 1) if self.shared else 0  # with its gate
        return self.hidden * self.experts + 3 * self.hidden * self.intermediate * self.chosen + shared

    @property
    def idle_weights(self) -> int:
        """Matrix entries of a layer's experts that do not compute a token."""
        return 3 * self.hidden * self.intermediate * (self.experts - self.chosen) if self.experts else 0

    def sides(self, target: str) -> tuple[int, int]:
        """Rows and columns of a layer's matrix by its name, as adapters name it. Raises ``ConfigError``."""
        wide = self.intermediate
        named = {
            "q_proj": (self.hidden, self.q * (1 + self.gated)),
            "k_proj": (self.hidden, self.kv),
            "v_proj": (self.hidden, self.kv),
        }
        named |= {"o_proj": (self.q, self.hidden)}
        if not self.experts:  # those are fused, and take no adapters
            named |= {
                "gate_proj": (self.hidden, wide),
                "up_proj": (self.hidden, wide),
                "down_proj": (wide, self.hidden),
            }
        if target not in named:
            raise ConfigError(f"optim.lora.targets: {target!r} is none of {', '.join(named)}")
        return named[target]

    @property
    def head_weights(self) -> int:
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        biases = self.q + 2 * self.kv if self.qkv_bias else 0
        norms = 2 * self.head_dim if self.qk_norm else 0
        decays = 2 * self.linear_value_heads + self.linear_size  # and the norm of linear attention's output
        mixers = self.attending * (self._attention + biases + norms) + self.linear * (self._linear + decays)
        others = self.layers * (self._mlp + self.idle_weights + 2 * self.hidden)
        return mixers + others + self.hidden + self.head_weights * (1 if self.tied else 2)


@dataclass(frozen=True)
class Vision:
    """A vision tower of the kind of Qwen2.5-VL (gated MLP, RMSNorm, windows), or of Qwen2-VL or Qwen3-VL (two layers,
    LayerNorm)."""

    hidden: int
    depth: int
    intermediate: int
    out: int
    patch: int = 14
    merge: int = 2  # patches a side that become one token
    temporal: int = 2  # frames of a patch; a still image is repeated
    gated: bool = True  # Qwen2.5-VL
    full_attention: int = 4  # layers that see the whole image; the others see windows
    window: int = 64  # patches of a window: 112 x 112 px
    positions: int = 0  # learnt position embeddings, and a bias of the first layer: Qwen3-VL
    deepstack: int = 0  # further mergers, Qwen3-VL

    @property
    def factor(self) -> int:
        """Sides of a view are multiples of this, in pixels."""
        return self.patch * self.merge

    @property
    def block_weights(self) -> int:
        return 4 * self.hidden**2 + (3 if self.gated else 2) * self.hidden * self.intermediate

    @property
    def patch_weights(self) -> int:
        return 3 * self.temporal * self.patch**2 * self.hidden

    @property
    def merger_weights(self) -> int:
        """Matrix entries per merged token, all mergers together."""
        wide = self.hidden * self.merge**2
        return (1 + self.deepstack) * (wide**2 + wide * self.out)

    @property
    def parameters(self) -> int:
        d, f, wide = self.hidden, self.intermediate, self.hidden * self.merge**2
        biases = 4 * d + (2 * f + d if self.gated else f + d)
        norm = d if self.gated else 2 * d  # RMSNorm; LayerNorm has a bias
        blocks = self.depth * (self.block_weights + biases + 2 * norm)
        mergers = self.merger_weights + (1 + self.deepstack) * (wide + self.out) + norm + self.deepstack * 2 * wide
        first = self.patch_weights + (d if self.positions else 0) + self.positions * d
        return blocks + mergers + first


@dataclass(frozen=True)
class Architecture:
    """A text decoder and its vision tower."""

    name: str
    text: Text
    vision: Vision
    packs: bool = field(default=True, kw_only=True)  # False: rows are computed one by one, and no prompt is shared

    @property
    def parameters(self) -> int:
        return self.text.parameters + self.vision.parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that compute a token: all but those of experts that are not chosen."""
        return self.parameters - self.text.layers * self.text.idle_weights

    @property
    def kv_values(self) -> int:
        """Numbers that the cache holds per token."""
        return 2 * self.text.attending * self.text.kv

    def patches(self, width: int, height: int, min_pixels: int, max_pixels: int) -> int:
        """Patches of an image's view, after the one resize of ``vtcli.store.images``."""
        rows, columns = smart_resize(height, width, self.vision.factor, min_pixels, max_pixels)
        return rows * columns // self.vision.patch**2

    def tokens(self, patches: int) -> int:
        return patches // self.vision.merge**2


def _qwen2_5(name: str, text: Text, intermediate: int) -> Architecture:
    return Architecture(name, text, Vision(1280, 32, intermediate, text.hidden))


def _qwen2(name: str, text: Text) -> Architecture:
    return Architecture(name, text, Vision(1280, 32, 5120, text.hidden, gated=False, full_attention=32))


def _qwen3_moe(name: str, text: Text) -> Architecture:
    return _qwen3(name, replace(text, qkv_bias=False, qk_norm=True, experts=128, chosen=8))


def _qwen3_5(name: str, text: Text) -> Architecture:
    hybrid = replace(
        text,
        qkv_bias=False,
        qk_norm=True,
        gated=True,
        linear=text.layers * 3 // 4,
        linear_heads=16,
        linear_size=128,
    )
    tower = Vision(1152, 27, 4304, text.hidden, 16, gated=False, full_attention=27, positions=2304)
    return Architecture(name, hybrid, tower, packs=False)


def _qwen3(name: str, text: Text, small: bool = False) -> Architecture:
    width, depth, intermediate = (1024, 24, 4096) if small else (1152, 27, 4304)
    tower = Vision(
        width, depth, intermediate, text.hidden, 16, gated=False, full_attention=depth, positions=2304, deepstack=3
    )
    return Architecture(name, text, tower)


KNOWN: Mapping[str, Architecture] = {
    arch.name: arch
    for arch in (  # vocab, hidden, layers, heads, kv_heads, head_dim, intermediate, tied: hf.co/Qwen/<name>-Instruct
        _qwen2("Qwen2-VL-2B", Text(151936, 1536, 28, 12, 2, 128, 8960, True)),
        _qwen2("Qwen2-VL-7B", Text(152064, 3584, 28, 28, 4, 128, 18944, False)),
        _qwen2("Qwen2-VL-72B", Text(152064, 8192, 80, 64, 8, 128, 29568, False)),
        _qwen2_5("Qwen2.5-VL-3B", Text(151936, 2048, 36, 16, 2, 128, 11008, True), 3420),
        _qwen2_5("Qwen2.5-VL-7B", Text(152064, 3584, 28, 28, 4, 128, 18944, False), 3420),
        _qwen2_5("Qwen2.5-VL-32B", Text(152064, 5120, 64, 40, 8, 128, 27648, False), 3456),
        _qwen2_5("Qwen2.5-VL-72B", Text(152064, 8192, 80, 64, 8, 128, 29568, False), 3456),
        _qwen3("Qwen3-VL-2B", Text(151936, 2048, 28, 16, 8, 128, 6144, True, qkv_bias=False, qk_norm=True), small=True),
        _qwen3("Qwen3-VL-4B", Text(151936, 2560, 36, 32, 8, 128, 9728, True, qkv_bias=False, qk_norm=True), small=True),
        _qwen3("Qwen3-VL-8B", Text(151936, 4096, 36, 32, 8, 128, 12288, False, qkv_bias=False, qk_norm=True)),
        _qwen3_moe("Qwen3-VL-30B-A3B", Text(151936, 2048, 48, 32, 4, 128, 768, False)),
        _qwen3_moe("Qwen3-VL-235B-A22B", Text(151936, 4096, 94, 64, 4, 128, 1536, False)),
        _qwen3_5("Qwen3.5-9B", Text(248320, 4096, 32, 16, 4, 256, 12288, False, linear_value_heads=32)),
        _qwen3_5("Qwen3.5-27B", Text(248320, 5120, 64, 24, 4, 256, 17408, False, linear_value_heads=48)),
        _qwen3_5(
            "Qwen3.5-35B-A3B",
            Text(248320, 2048, 40, 16, 2, 256, 512, False, linear_value_heads=32, experts=256, chosen=8, shared=512),
        ),
        _qwen3("Qwen3-VL-32B", Text(151936, 5120, 64, 64, 8, 128, 25600, False, qkv_bias=False, qk_norm=True)),
    )
}


KINDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
"""``model_type`` of the models whose sizes can be read from a ``config.json``."""


def known(model: str) -> Architecture | None:
    """The architecture of a hub name. ``Qwen/Qwen2.5-VL-7B-Instruct`` is Qwen2.5-VL-7B, and so are fine-tunes that keep
    that name."""
    return next((arch for name, arch in KNOWN.items() if name.lower() in model.lower()), None)


def from_folder(folder: Path) -> Architecture:
    """The architecture of a Hugging Face folder, from its ``config.json``.

    Raises:
        InputError: the file is missing or unreadable, of another family, or lacks a size.
    """
    path = folder / "config.json"
    try:
        found = load_json(read_file(path))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a model's configuration: {error}") from error
    kind = found.get("model_type") if isinstance(found, dict) else None
    if kind not in KINDS:
        raise InputError(f"{path}: model_type is {kind!r}; vtcli plan knows the sizes of {', '.join(KINDS)}.")
    try:
        return _from_config(str(folder), found, kind)
    except KeyError as error:
        raise InputError(f"{path}: {error.args[0]!r} is missing, so the model's size is unknown.") from error


def _from_config(name: str, config: Mapping[str, Any], kind: str) -> Architecture:
    three, five, moe = kind.startswith("qwen3_"), kind.startswith("qwen3_5"), kind.endswith("_moe")
    text: Mapping[str, Any] = {**config, **(config.get("text_config") or {})}  # older files have text sizes on top
    vision: Mapping[str, Any] = config["vision_config"]
    hidden, heads = int(text["hidden_size"]), int(text["num_attention_heads"])
    if moe and (text.get("mlp_only_layers") or text.get("decoder_sparse_step", 1) != 1):
        raise InputError(f"{name}: some of its layers have no experts. vtcli plan counts models whose layers all have.")
    decoder = Text(
        vocab=text["vocab_size"],
        hidden=hidden,
        layers=text["num_hidden_layers"],
        heads=heads,
        kv_heads=text.get("num_key_value_heads") or heads,
        head_dim=(text.get("head_dim") or (256 if five else 128)) if three else hidden // heads,
        intermediate=text["moe_intermediate_size" if moe else "intermediate_size"],
        tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        qkv_bias=not three,
        qk_norm=three,
        **(_experts(text) if moe else {}),
        **(_hybrid(text, moe=moe) if five else {}),
    )
    if kind == "qwen2_vl":  # its names of the same sizes
        wide = int(vision.get("embed_dim", 1280))
        own = {"hidden_size": wide, "intermediate_size": wide * int(vision.get("mlp_ratio", 4))}
        vision = {**vision, **own, "out_hidden_size": vision.get("hidden_size", 3584)}
    depth = vision.get("depth", 27 if three else 32)  # what files leave out has transformers' defaults
    full = depth if kind != "qwen2_5_vl" else len(vision.get("fullatt_block_indexes", (7, 15, 23, 31)))
    patch = vision.get("patch_size", 16 if three else 14)
    tower = Vision(
        hidden=vision["hidden_size"],
        depth=depth,
        intermediate=vision.get("intermediate_size", 4304 if three else 3420),
        out=vision.get("out_hidden_size", 3584),
        patch=patch,
        merge=vision.get("spatial_merge_size", 2),
        temporal=vision.get("temporal_patch_size", 2),
        gated=kind == "qwen2_5_vl",
        full_attention=full,
        window=(vision.get("window_size", 112) // patch) ** 2,
        positions=vision.get("num_position_embeddings", 2304) if three else 0,
        deepstack=len(vision.get("deepstack_visual_indexes", (8, 16, 24))) if three and not five else 0,
    )
    return Architecture(name, decoder, tower, packs=not five)


def _hybrid(text: Mapping[str, Any], *, moe: bool) -> dict[str, Any]:
    """Fields of ``Text`` that Qwen3.5 alone has."""
    layers, every = int(text["num_hidden_layers"]), int(text.get("full_attention_interval") or 4)
    kinds = text.get("layer_types")
    return {
        "gated": True,
        "shared": int(text.get("shared_expert_intermediate_size", 512)) if moe else 0,
        "linear": kinds.count("linear_attention") if kinds else layers - layers // every,
        "linear_heads": int(text.get("linear_num_key_heads", 16)),
        "linear_value_heads": int(text.get("linear_num_value_heads", 32)),
        "linear_size": int(text.get("linear_key_head_dim", 128)),
    }


def _experts(text: Mapping[str, Any]) -> dict[str, int]:
    """Fields of ``Text``; transformers writes ``num_local_experts`` where released files have ``num_experts``."""
    count = text["num_experts"] if "num_experts" in text else text["num_local_experts"]
    return {"experts": int(count), "chosen": int(text["num_experts_per_tok"])}


def from_sizes(name: str, sizes: Mapping[str, Any], family: str = "qwen2_5_vl") -> Architecture:
    """The architecture of conf/model/tiny.yaml, or of a miniature of ``family``. Its vocabulary is an upper limit; it
    is taken as reached and rounded up to 64.

    Raises:
        InputError: a size is missing.
    """
    try:
        hidden, heads = int(sizes["hidden_size"]), int(sizes["heads"])
        vocab = (int(sizes["vocab_size"]) + 63) // 64 * 64
        layers, kv = int(sizes["layers"]), int(sizes["kv_heads"])
        three, five, moe = family.startswith("qwen3_"), family.startswith("qwen3_5"), family.endswith("_moe")
        own: dict[str, Any] = {"qkv_bias": not three, "qk_norm": three}
        if moe:
            own |= {"experts": int(sizes["experts"]), "chosen": int(sizes["experts_per_token"])}
        if five:
            own |= {"gated": True, "linear": layers - layers // int(sizes["attention_every"])}
            own |= {name: int(sizes[name]) for name in ("linear_heads", "linear_value_heads", "linear_size")}
            own["shared"] = int(sizes["expert_intermediate_size"]) if moe else 0
        wide = int(sizes["expert_intermediate_size" if moe else "intermediate_size"])
        text = Text(vocab, hidden, layers, heads, kv, hidden // heads, wide, tied=True, **own)
        depth = int(sizes["vision_depth"])
        more: dict[str, Any] = {}
        if family == "qwen2_vl":
            more = {"gated": False}
        if three:
            more = {"patch": 16, "gated": False, "positions": int(sizes["vision_positions"])}
            more["deepstack"] = 0 if five else int(sizes["vision_deepstack"])
        tower = Vision(
            int(sizes["vision_hidden_size"]),
            depth,
            int(sizes["vision_intermediate_size"]),
            out=hidden,
            full_attention=depth,
            **more,
        )
    except KeyError as error:
        raise InputError(
            f"model.architecture: {error.args[0]!r} is missing, so the model's size is unknown."
        ) from error
    return Architecture(name, text, tower, packs=not five)
