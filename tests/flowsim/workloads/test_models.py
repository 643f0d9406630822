"""Parameter counts are the published ones, and FLOPs come near the published ones."""

import pytest

from netreduce.errors import ConfigurationError
from netreduce.flowsim.workloads.models import NAMES, model_named

PUBLISHED = {
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "resnet50": 25_557_032,
    "bert-large": 336_226_108,
    "gpt2": 124_439_808,
    "llama3-8b": 8_030_261_248,
}
GFLOPS = {"alexnet": 2 * 0.714, "vgg16": 2 * 15.47, "resnet50": 2 * 4.09}
"""torchvision's model table gives GFLOPS as multiply-adds."""


@pytest.mark.parametrize("name", NAMES)
def test_the_parameters_are_the_published_ones(name):
    assert model_named(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", list(GFLOPS))
def test_the_flops_are_the_published_ones(name):
    assert sum(layer.flops for layer in model_named(name).layers) / 1e9 == pytest.approx(GFLOPS[name], rel=0.02)


def test_a_transformers_flops_are_twice_its_weights_per_token_and_the_attention():
    layers = model_named("llama3-8b").layers
    weights = sum(layer.tensors[0] for layer in layers if layer.flops and layer.tensors)
    scores = sum(layer.flops for layer in layers if layer.name.endswith("scores"))
    assert sum(layer.flops for layer in layers) == pytest.approx(2 * weights * 8192 + scores)


def test_an_unknown_model_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ConfigurationError, match="there are alexnet, vgg16"):
        model_named("lenet")
