# pyright: basic
"""Training steps of models that others wrote, as targets of `plan`; nothing is allocated.

    meshwright plan benchmarks/third_party.py:resnet_50 --cluster 8xh100

Haiku's networks need `dm-haiku`, the others `transformers` 4, the last with Flax's models; targets
are names of this file where their library is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import optax

ADAMW = optax.adamw(1e-4)


def _step(loss: Callable[..., Any], params: Any, *batch: Any) -> tuple[Any, Any, Any]:
    """A step with AdamW; the loss takes parameters and the batch, and returns (loss, state)."""

    def train_step(params, opt_state, *batch):
        (value, state), grads = jax.value_and_grad(loss, has_aux=True)(params, *batch)
        updates, opt_state = ADAMW.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value, state

    opt_state = jax.eval_shape(ADAMW.init, params)
    return train_step, (params, opt_state, *batch), {"donate_argnums": (0, 1)}


def haiku_net(name: str, batch: int = 256, classes: int = 1000, **settings: Any) -> Any:
    """A classifier of images out of `haiku.nets`."""
    hk = import_module("haiku")
    net = hk.transform_with_state(
        lambda x: getattr(hk.nets, name)(num_classes=classes, **settings)(x, is_training=True)
    )
    images = jax.ShapeDtypeStruct((batch, 224, 224, 3), jnp.float32)
    labels = jax.ShapeDtypeStruct((batch,), jnp.int32)
    params, state = jax.eval_shape(net.init, jax.random.key(0), images)

    def loss(params, state, images, labels):
        logits, state = net.apply(params, state, None, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), state

    return _step(loss, params, state, images, labels)


def transformer(
    name: str, config: str, shape: tuple[int, ...], classes: int = 0, **settings: Any
) -> Any:
    """A Flax model out of `transformers`, with random inputs of a shape.

    Args:
        name: class of the model.
        config: class of its configuration.
        shape: of the tokens or images of a batch.
        classes: labels of an image; if 0, a label for each token.
        **settings: of the configuration.
    """
    library = import_module("transformers")
    made = getattr(library, config)(**settings)
    model = getattr(library, name)(made, input_shape=(1, *shape[1:]), _do_init=False)
    params = jax.eval_shape(lambda key: model.init_weights(key, (1, *shape[1:])), _key())
    dtype = jnp.float32 if classes else jnp.int32
    given = jax.ShapeDtypeStruct(shape, dtype)
    labels = jax.ShapeDtypeStruct(shape[:1] if classes else shape, jnp.int32)

    def loss(params, given, labels, key):
        given = given.transpose(0, 3, 1, 2) if classes else given
        found = model(given, params=params, train=True, dropout_rng=key)
        losses = optax.softmax_cross_entropy_with_integer_labels(found.logits, labels)
        return losses.mean(), ()

    return _step(loss, params, given, labels, _key())


def _key() -> Any:
    return jax.ShapeDtypeStruct((2,), jnp.uint32)


TOKENS = (32, 512)
HAIKU = {
    "resnet_18": partial(haiku_net, "ResNet18"),
    "resnet_50": partial(haiku_net, "ResNet50"),
    "resnet_101": partial(haiku_net, "ResNet101"),
    "resnet_200": partial(haiku_net, "ResNet200"),
    "mobilenet_v1": partial(haiku_net, "MobileNetV1"),
}
TRANSFORMERS = {
    "bert_base": partial(transformer, "FlaxBertForMaskedLM", "BertConfig", TOKENS),
    "roberta_base": partial(transformer, "FlaxRobertaForMaskedLM", "RobertaConfig", TOKENS,
                            max_position_embeddings=514),
    "gpt2": partial(transformer, "FlaxGPT2LMHeadModel", "GPT2Config", TOKENS),
    "distilbert_base": partial(transformer, "FlaxDistilBertForMaskedLM", "DistilBertConfig",
                               TOKENS),
    "vit_base": partial(transformer, "FlaxViTForImageClassification", "ViTConfig",
                        (64, 224, 224, 3), classes=2),
}  # fmt: skip
LIBRARIES = {"haiku": HAIKU, "transformers": TRANSFORMERS}
for library, targets in LIBRARIES.items():
    if find_spec(library) is not None:
        globals().update(targets)
