# pyright: basic
"""Training steps of models that others wrote, as targets of `plan`; nothing is allocated.

    meshwright plan benchmarks/third_party.py:resnet_50 --cluster 8xh100

Haiku's networks need `dm-haiku`, language models and vision transformers `transformers` 4, the last
with Flax's models (`google-tunix` takes 5: install 4 after it), the others the library of their
name: `jax-cfd`, `jraph`, `diffrax` (with `equinox`), `flowjax`; newer models are in
`third_party_newer.py`. Targets are names of this file where their library is installed.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.third_party_newer import ADAMW, NEWER, step_of


def haiku_net(
    name: str, batch: int = 256, classes: int = 1000, size: int = 224, optimizer: Any = ADAMW,
    **settings: Any,
) -> Any:  # fmt: skip
    """A classifier of images out of `haiku.nets`."""
    hk = import_module("haiku")
    net = hk.transform_with_state(
        lambda x: getattr(hk.nets, name)(num_classes=classes, **settings)(x, is_training=True)
    )
    images = jax.ShapeDtypeStruct((batch, size, size, 3), jnp.float32)
    labels = jax.ShapeDtypeStruct((batch,), jnp.int32)
    params, state = jax.eval_shape(net.init, jax.random.key(0), images)

    def loss(params, state, images, labels):
        logits, state = net.apply(params, state, None, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), state

    return step_of(optimizer, loss, params, state, images, labels)


def transformer(
    name: str, config: str, shape: tuple[int, ...], classes: int = 0, optimizer: Any = ADAMW,
    **settings: Any,
) -> Any:  # fmt: skip
    """A Flax model out of `transformers`, with random inputs of a shape.

    Args:
        name: class of the model.
        config: class of its configuration.
        shape: of the tokens or images of a batch.
        classes: labels of an image; if 0, a label for each token.
        optimizer: of the step.
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

    return step_of(optimizer, loss, params, given, labels, _key())


def translator(
    name: str, config: str, shape: tuple[int, ...], spectra: bool = False,
    optimizer: Any = ADAMW, **settings: Any,
) -> Any:  # fmt: skip
    """A Flax model out of `transformers` with an encoder and a decoder.

    Args:
        name: class of the model.
        config: class of its configuration.
        shape: of the decoder's tokens, and of the encoder's if these are not spectra.
        spectra: whether the encoder takes spectra of sounds: (rows, mel bins, frames).
        optimizer: of the step.
        **settings: of the configuration.
    """
    library = import_module("transformers")
    made = getattr(library, config)(**settings)
    model = getattr(library, name)(made, _do_init=False)
    params = jax.eval_shape(lambda key: model.init_weights(key, model.input_shape), _key())
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32)
    sounds = (shape[0], made.num_mel_bins, 2 * made.max_source_positions) if spectra else ()
    given = jax.ShapeDtypeStruct(sounds, jnp.float32) if spectra else tokens

    def loss(params, given, before, labels, key):
        found = model(given, decoder_input_ids=before, params=params, train=True, dropout_rng=key)
        losses = optax.softmax_cross_entropy_with_integer_labels(found.logits, labels)
        return losses.mean(), ()

    return step_of(optimizer, loss, params, given, tokens, tokens, _key())


def flow(size: int = 4096) -> Any:
    """A step of an incompressible flow out of `jax_cfd`, periodic in two dimensions."""
    cfd = import_module("jax_cfd.base")
    grid = cfd.grids.Grid((size, size), domain=((0.0, 6.3), (0.0, 6.3)))
    step = cfd.equations.semi_implicit_navier_stokes(1.0, 1e-3, 1e-3, grid)
    edge = cfd.boundaries.periodic_boundary_conditions(2)
    field = jax.ShapeDtypeStruct((size, size), jnp.float32)

    def advance(fields):
        velocity = tuple(
            cfd.grids.GridVariable(cfd.grids.GridArray(x, at, grid), edge)
            for x, at in zip(fields, grid.cell_faces, strict=True)
        )
        return tuple(x.array.data for x in step(velocity))

    return advance, ((field, field),), {"donate_argnums": (0,)}


def graph_net(
    nodes: int = 1 << 17, edges: int = 1 << 20, width: int = 256, rounds: int = 4,
    optimizer: Any = ADAMW,
) -> Any:  # fmt: skip
    """A graph network out of `jraph` on one large graph, whose nodes are classified."""
    jraph = import_module("jraph")

    def perceptron(p, *parts):
        return jax.nn.relu(jnp.concatenate(parts, -1) @ p["in"]) @ p["out"]

    def net(params, nodes_, edges_, senders, receivers):
        graph = jraph.GraphsTuple(
            nodes=nodes_, edges=edges_, senders=senders, receivers=receivers, globals=None,
            n_node=jnp.array([nodes]), n_edge=jnp.array([edges]),
        )  # fmt: skip
        for p in params["rounds"]:
            graph = jraph.GraphNetwork(
                lambda e, s, r, _, p=p: e + perceptron(p["edge"], e, s, r),
                lambda n, s, r, _, p=p: n + perceptron(p["node"], n, s, r),
            )(graph)
        return graph.nodes @ params["last"]

    def loss(params, nodes_, edges_, senders, receivers, labels):
        logits = net(params, nodes_, edges_, senders, receivers)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), ()

    def f(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    def i(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    one = {"in": f(3 * width, width), "out": f(width, width)}
    params = {"rounds": [{"edge": one, "node": one}] * rounds, "last": f(width, 16)}
    return step_of(
        optimizer, loss, params, f(nodes, width), f(edges, width), i(edges), i(edges), i(nodes),
    )  # fmt: skip


def neural_ode(batch: int = 4096, width: int = 1024, size: int = 64, optimizer: Any = ADAMW) -> Any:
    """A neural differential equation: `diffrax` with a perceptron of `equinox`."""
    diffrax, eqx = import_module("diffrax"), import_module("equinox")
    model = eqx.filter_eval_shape(eqx.nn.MLP, size, size, width, 3, key=jax.random.key(0))
    params, rest = eqx.partition(model, lambda x: isinstance(x, jax.ShapeDtypeStruct))

    def loss(params, start, end):
        net = eqx.combine(params, rest)

        def solved(y):
            return diffrax.diffeqsolve(
                diffrax.ODETerm(lambda _t, y, _a: net(y)), diffrax.Tsit5(), 0.0, 1.0, 0.05, y,
                stepsize_controller=diffrax.ConstantStepSize(), max_steps=32,
            ).ys[-1]  # fmt: skip

        return jnp.mean((jax.vmap(solved)(start) - end) ** 2), ()

    rows = jax.ShapeDtypeStruct((batch, size), jnp.float32)
    return step_of(optimizer, loss, params, rows, rows)


def coupling_flow(
    batch: int = 8192, size: int = 64, width: int = 512, layers: int = 8, optimizer: Any = ADAMW
) -> Any:
    """A normalizing flow out of `flowjax`: coupling layers, by maximum likelihood."""
    flows, eqx = import_module("flowjax.flows"), import_module("equinox")
    paramax = import_module("paramax")
    normal = import_module("flowjax.distributions").Normal

    def made():
        return flows.coupling_flow(
            jax.random.key(0), base_dist=normal(jnp.zeros(size)), flow_layers=layers,
            nn_width=width, nn_depth=2,
        )  # fmt: skip

    params, rest = eqx.partition(made(), eqx.is_inexact_array)  # permutations have to be known
    params = jax.eval_shape(lambda p: p, params)

    def loss(params, rows):
        return -paramax.unwrap(eqx.combine(params, rest)).log_prob(rows).mean(), ()

    return step_of(optimizer, loss, params, jax.ShapeDtypeStruct((batch, size), jnp.float32))


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
    "bert_base": partial(transformer, "FlaxBertForMaskedLM", "BertConfig", shape=TOKENS),
    "roberta_base": partial(transformer, "FlaxRobertaForMaskedLM", "RobertaConfig", shape=TOKENS,
                            max_position_embeddings=514),
    "gpt2": partial(transformer, "FlaxGPT2LMHeadModel", "GPT2Config", shape=TOKENS),
    "distilbert_base": partial(transformer, "FlaxDistilBertForMaskedLM", "DistilBertConfig",
                               shape=TOKENS),
    "vit_base": partial(transformer, "FlaxViTForImageClassification", "ViTConfig",
                        shape=(64, 224, 224, 3), classes=2),
    "gpt_neo_125m": partial(transformer, "FlaxGPTNeoForCausalLM", "GPTNeoConfig", shape=TOKENS,
                            hidden_size=768, num_layers=12, num_heads=12,
                            attention_types=[[["global", "local"], 6]]),
    "electra_small": partial(transformer, "FlaxElectraForMaskedLM", "ElectraConfig", shape=TOKENS),
    "llama_160m": partial(transformer, "FlaxLlamaForCausalLM", "LlamaConfig", shape=TOKENS,
                          hidden_size=768, intermediate_size=2048, num_hidden_layers=12,
                          num_attention_heads=12),
    "bart_base": partial(translator, "FlaxBartForConditionalGeneration", "BartConfig", shape=TOKENS,
                         d_model=768, encoder_layers=6, decoder_layers=6,
                         encoder_attention_heads=12, decoder_attention_heads=12,
                         encoder_ffn_dim=3072, decoder_ffn_dim=3072),
    "whisper_tiny": partial(translator, "FlaxWhisperForConditionalGeneration", "WhisperConfig",
                            shape=(32, 256), spectra=True),
}  # fmt: skip
LIBRARIES = {
    "haiku": HAIKU, "transformers": TRANSFORMERS, "jax_cfd": {"cfd_flow": flow},
    "jraph": {"jraph_net": graph_net}, "diffrax": {"diffrax_ode": neural_ode},
    "flowjax": {"flowjax_coupling": coupling_flow}, **NEWER,
}  # fmt: skip
for library, targets in LIBRARIES.items():
    if find_spec(library) is not None:
        globals().update(targets)
