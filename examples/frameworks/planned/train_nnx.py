# pyright: basic
"""Flax NNX: a small convolutional classifier with batch norm, dropout and metrics."""

import jax
import optax
from flax import nnx

import meshwright


class Classifier(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.conv = nnx.Conv(1, 16, (3, 3), use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.hidden = nnx.Linear(7 * 7 * 16, 128, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.head = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), (2, 2))
        x = self.dropout(nnx.relu(self.hidden(x.reshape(x.shape[0], -1))))
        return self.head(x)


def loss_fn(model, batch):
    logits = model(batch["image"])
    labels = batch["label"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits


@meshwright.parallelize(cluster="host")
def train_step(model, optimizer, metrics, batch):
    (loss, logits), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model, batch)
    metrics.update(loss=loss, logits=logits, labels=batch["label"])
    optimizer.update(model, grads)


@meshwright.parallelize(cluster="host")
def eval_step(model, batch):
    return loss_fn(model, batch)[0]


def batches(count, size=128):
    for n in range(count):
        image, label = jax.random.split(jax.random.key(n))
        yield {
            "image": jax.random.normal(image, (size, 14, 14, 1)),
            "label": jax.random.randint(label, (size,), 0, 10),
        }


def train(steps=5):
    model = Classifier(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    losses = []
    for batch in batches(steps):
        train_step(model, optimizer, metrics, batch)
        losses.append(float(metrics.compute()["loss"]))
        metrics.reset()
    model.eval()
    losses.append(float(eval_step(model, batch)))
    return losses, nnx.state(model, nnx.Param)


if __name__ == "__main__":
    print(train()[0])
