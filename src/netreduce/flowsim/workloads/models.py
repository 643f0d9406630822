"""Models as lists of layers: parameter shapes as published, and forward FLOPs per sample computed from them.

Layers are in the order in which the reference implementations register them (torchvision, Hugging Face, Meta), because
DDP buckets follow the reverse of that order. A layer's share of the backward pass is its share of the FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from netreduce.errors import ConfigurationError


@dataclass(frozen=True)
class Layer:
    """tensors: elements of each parameter tensor. flops: of the forward pass, per sample. unit: what FSDP shards at
    once.
    """

    name: str
    tensors: tuple[int, ...]
    flops: float
    unit: str = ""

    @property
    def parameters(self) -> int:
        return sum(self.tensors)


@dataclass(frozen=True)
class Measured:
    """Published training speed on one device: samples a second with `batch` samples per step, and where it says so."""

    device: str
    batch: int
    samples_per_s: float
    source: str

    @property
    def iteration_s(self) -> float:
        return self.batch / self.samples_per_s


@dataclass(frozen=True)
class Model:
    """A model and defaults of its training: bytes of a gradient element, and a published speed without a network."""

    name: str
    title: str
    layers: tuple[Layer, ...]
    item_bytes: int
    measured: Measured

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    @property
    def gradient_bytes(self) -> int:
        return self.parameters * self.item_bytes


def _conv(name: str, into: int, out: int, kernel: int, side: int, *, bias: bool, norm: bool = False) -> list[Layer]:
    """A convolution with a square kernel and `side` x `side` outputs, and its batch normalisation."""
    weights = into * out * kernel * kernel
    layers = [Layer(name, (weights, out) if bias else (weights,), 2.0 * weights * side * side)]
    if norm:
        layers.append(Layer(f"{name}.norm", (out, out), 4.0 * out * side * side))
    return layers


def _linear(name: str, into: int, out: int, positions: int, *, bias: bool = True, unit: str = "") -> Layer:
    weights = into * out
    return Layer(name, (weights, out) if bias else (weights,), 2.0 * weights * positions, unit)


def alexnet() -> tuple[Layer, ...]:
    """torchvision's AlexNet ("One weird trick", arXiv 1404.5997), 61,100,840 parameters."""
    shapes = [(3, 64, 11, 55), (64, 192, 5, 27), (192, 384, 3, 13), (384, 256, 3, 13), (256, 256, 3, 13)]
    layers = [layer for i, shape in enumerate(shapes) for layer in _conv(f"conv{i}", *shape, bias=True)]
    dense = [(256 * 6 * 6, 4096), (4096, 4096), (4096, 1000)]
    return (*layers, *(_linear(f"fc{i}", *shape, 1) for i, shape in enumerate(dense)))


def vgg16() -> tuple[Layer, ...]:
    """torchvision's VGG-16 (configuration D of arXiv 1409.1556), 138,357,544 parameters."""
    blocks = [(64, 2, 224), (128, 2, 112), (256, 3, 56), (512, 3, 28), (512, 3, 14)]
    layers: list[Layer] = []
    into = 3
    for block, (width, count, side) in enumerate(blocks):
        for number in range(count):
            layers += _conv(f"conv{block}.{number}", into, width, 3, side, bias=True)
            into = width
    dense = [(512 * 7 * 7, 4096), (4096, 4096), (4096, 1000)]
    return (*layers, *(_linear(f"fc{i}", *shape, 1) for i, shape in enumerate(dense)))


def resnet50() -> tuple[Layer, ...]:
    """torchvision's ResNet-50 (v1.5 of arXiv 1512.03385: the stride is in the 3 x 3), 25,557,032 parameters."""
    layers = _conv("conv1", 3, 64, 7, 112, bias=False, norm=True)
    into = 64
    for stage, (width, blocks, side) in enumerate([(64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)]):
        for block in range(blocks):
            name = f"layer{stage + 1}.{block}"
            before = side * 2 if stage and not block else side
            layers += _conv(f"{name}.conv1", into, width, 1, before, bias=False, norm=True)
            layers += _conv(f"{name}.conv2", width, width, 3, side, bias=False, norm=True)
            layers += _conv(f"{name}.conv3", width, 4 * width, 1, side, bias=False, norm=True)
            if not block:
                layers += _conv(f"{name}.downsample", into, 4 * width, 1, side, bias=False, norm=True)
            into = 4 * width
    return (*layers, _linear("fc", 2048, 1000, 1))


def bert_large(length: int = 512) -> tuple[Layer, ...]:
    """BERT-large with its pre-training heads (arXiv 1810.04805; decoder tied), 336,226,108 parameters."""
    width, inner, words = 1024, 4096, 30522
    norm = (width, width)
    layers = [Layer("embeddings", (words * width, 512 * width, 2 * width, *norm), 0.0, "embeddings")]
    for number in range(24):
        unit = f"layer{number}"
        layers += [_linear(f"{unit}.{name}", width, width, length, unit=unit) for name in ("query", "key", "value")]
        layers.append(Layer(f"{unit}.scores", (), 4.0 * length * length * width, unit))
        layers.append(_linear(f"{unit}.output", width, width, length, unit=unit))
        layers.append(Layer(f"{unit}.norm1", norm, 0.0, unit))
        layers.append(_linear(f"{unit}.up", width, inner, length, unit=unit))
        layers.append(_linear(f"{unit}.down", inner, width, length, unit=unit))
        layers.append(Layer(f"{unit}.norm2", norm, 0.0, unit))
    layers.append(_linear("pooler", width, width, 1, unit="heads"))
    layers.append(Layer("decoder", (words,), 2.0 * words * width * length, "heads"))
    layers.append(_linear("transform", width, width, length, unit="heads"))
    layers.append(Layer("transform.norm", norm, 0.0, "heads"))
    layers.append(_linear("next_sentence", width, 2, 1, unit="heads"))
    return tuple(layers)


def gpt2(length: int = 1024) -> tuple[Layer, ...]:
    """GPT-2 small (Radford et al., 2019; output tied to the embedding), 124,439,808 parameters."""
    width, words = 768, 50257
    norm = (width, width)
    layers = [Layer("embeddings", (words * width, 1024 * width), 0.0, "embeddings")]
    for number in range(12):
        unit = f"layer{number}"
        layers.append(Layer(f"{unit}.norm1", norm, 0.0, unit))
        layers.append(_linear(f"{unit}.qkv", width, 3 * width, length, unit=unit))
        layers.append(Layer(f"{unit}.scores", (), 4.0 * length * length * width, unit))
        layers.append(_linear(f"{unit}.output", width, width, length, unit=unit))
        layers.append(Layer(f"{unit}.norm2", norm, 0.0, unit))
        layers.append(_linear(f"{unit}.up", width, 4 * width, length, unit=unit))
        layers.append(_linear(f"{unit}.down", 4 * width, width, length, unit=unit))
    layers.append(Layer("head", norm, 2.0 * words * width * length, "head"))
    return tuple(layers)


def llama3_8b(length: int = 8192) -> tuple[Layer, ...]:
    """Llama 3 8B (arXiv 2407.21783, table 3: 32 layers, width 4,096, 8 key/value heads), 8,030,261,248 parameters."""
    width, inner, words, keys = 4096, 14336, 128256, 1024
    layers = [Layer("embeddings", (words * width,), 0.0, "embeddings")]
    for number in range(32):
        unit = f"layer{number}"
        shapes = [("query", width, width), ("key", width, keys), ("value", width, keys)]
        layers += [_linear(f"{unit}.{n}", a, b, length, bias=False, unit=unit) for n, a, b in shapes]
        layers.append(Layer(f"{unit}.scores", (), 2.0 * length * length * width, unit))  # causal: half of it
        layers.append(_linear(f"{unit}.output", width, width, length, bias=False, unit=unit))
        shapes = [("gate", width, inner), ("up", width, inner), ("down", inner, width)]
        layers += [_linear(f"{unit}.{n}", a, b, length, bias=False, unit=unit) for n, a, b in shapes]
        layers.append(Layer(f"{unit}.norms", (width, width), 0.0, unit))
    layers.append(Layer("norm", (width,), 0.0, "head"))
    layers.append(_linear("head", width, words, length, bias=False, unit="head"))
    return tuple(layers)


RTX_2080 = "github.com/ggg17226/rtx2080-dl-benchmark, benchmark-tf.md (TensorFlow 1.11, FP32)"
"""One RTX 2080, the paper's first test bed's device. The batch sizes of the paper are not known."""

_MODELS: dict[str, tuple[str, Callable[[], tuple[Layer, ...]], int, Measured]] = {
    "alexnet": ("AlexNet", alexnet, 4, Measured("RTX 2080", 64, 2103.99, RTX_2080)),
    "vgg16": ("VGG-16", vgg16, 4, Measured("RTX 2080", 32, 126.27, RTX_2080)),
    "resnet50": ("ResNet-50", resnet50, 4, Measured("RTX 2080", 64, 192.91, RTX_2080)),
    "bert-large": (
        "BERT-large",
        bert_large,
        4,
        Measured(
            "V100 32 GB",
            14,
            26.04,
            "NVIDIA/DeepLearningExamples 0663b67, PyTorch/LanguageModeling/BERT/README.md (DGX-1, mixed precision)",
        ),
    ),
    "gpt2": (
        "GPT-2",
        gpt2,
        4,
        Measured("A100 40 GB", 12, 12 / 0.135, "karpathy/nanoGPT README.md (135 ms for 12 x 1,024 tokens, compiled)"),
    ),
    "llama3-8b": (
        "Llama 3 8B",
        llama3_8b,
        2,
        Measured(
            "H100",
            2,
            6667 / 8192,
            "pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md (FSDP on 8 GPUs, compiled, 8,192 tokens)",
        ),
    ),
}

NAMES = tuple(_MODELS)


def model_named(name: str) -> Model:
    """The model, or a ConfigurationError that lists them."""
    if name not in _MODELS:
        raise ConfigurationError(f"no model {name!r}; there are {', '.join(NAMES)}")
    title, layers, item_bytes, measured = _MODELS[name]
    return Model(name, title, layers(), item_bytes, measured)
