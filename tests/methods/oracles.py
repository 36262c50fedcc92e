"""Each method's loss, written from its paper's formula in NumPy loops; nothing of recollect is imported here.

A network is a dictionary: backbone f(x) = relu(W x + b), heads z_t = V_t f + c_t. Gradients are central differences.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Net = dict[str, np.ndarray]
Scope = Callable[[int], range]


def features(net: Net, x: np.ndarray) -> np.ndarray:
    return np.maximum(net["W"] @ x + net["b"], 0)


def logits(net: Net, f: np.ndarray) -> np.ndarray:
    tasks = sorted(int(name[1:]) for name in net if name.startswith("V"))
    return np.concatenate([net[f"V{t}"] @ f + net[f"c{t}"] for t in tasks])


def log_softmax(z: np.ndarray) -> np.ndarray:
    shifted = z - max(z)
    return shifted - np.log(sum(np.exp(v) for v in shifted))


def cross_entropy(z: np.ndarray, y: int, units: range) -> float:
    chosen = log_softmax(np.array([z[u] for u in units]))
    return -float(chosen[list(units).index(y)])


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def er(net: Net, now: list, past: list, units_now: range, units_past: Callable[[int], range]) -> float:
    loss = mean([cross_entropy(logits(net, features(net, x)), y, units_now) for x, y in now])
    return loss + mean([cross_entropy(logits(net, features(net, x)), y, units_past(y)) for x, y in past])


def replayed(net: Net, data: list, scope: Scope) -> float:
    """Mean cross-entropy, each sample's over the units that `scope` gives for its label."""
    return mean([cross_entropy(logits(net, features(net, x)), y, scope(y)) for x, y in data])


def derpp(net: Net, now: list, past: list, stored: list[np.ndarray], alpha: float, beta: float, scope: Scope,
          second: list) -> float:  # fmt: skip
    """`stored[i]` holds only the logits of units that existed when sample i was stored; `second` is for the labels."""
    errors = []
    for (x, _), before in zip(past, stored, strict=True):
        z = logits(net, features(net, x))
        errors += [(z[u] - before[u]) ** 2 for u in range(len(before))]
    return replayed(net, now, scope) + alpha * mean(errors) + beta * replayed(net, second, scope)


def er_mkd(net: Net, teacher: Net, now: list, past: list, lam: float, tau: float, scope: Scope) -> float:
    loss = 0.0
    for data in (now, past):
        divergences = []
        for x, _ in data:
            student = log_softmax(logits(net, features(net, x)) / tau)
            taught = log_softmax(logits(teacher, features(teacher, x)) / tau)
            divergences.append(sum(np.exp(q) * (q - p) for q, p in zip(taught, student, strict=True)))
        loss += replayed(net, data, scope) + lam * tau**2 * mean(divergences)
    return loss


def cls_er(net: Net, stable: Net, plastic: Net, now: list, past: list, lam: float, gamma: float, scope: Scope) -> float:
    errors = []
    for x, y in past:
        s, p = (logits(m, features(m, x)) for m in (stable, plastic))
        target = s if np.exp(log_softmax(s)[y]) > np.exp(log_softmax(p)[y]) else p
        errors += [(a - b) ** 2 for a, b in zip(logits(net, features(net, x)), target, strict=True)]
    return replayed(net, now, scope) + gamma * replayed(net, past, scope) + lam * mean(errors)


def attention(net: Net, t: int, f: np.ndarray) -> np.ndarray:
    hidden = np.maximum(net[f"A{t}"] @ f + net[f"a{t}"], 0)
    return 1 / (1 + np.exp(-(net[f"B{t}"] @ hidden + net[f"e{t}"])))


def tamil(net: Net, teacher: Net, now: list, past: list, past_tasks: list[int], alpha: float, beta: float, lam: float,
          frozen: Net, scope: Scope) -> float:  # fmt: skip
    """`frozen` holds the old attentions' weights, through which the pairwise loss sends no gradient."""
    t = max(int(name[1:]) for name in net if name.startswith("A"))
    ce, apart = [], {i: [] for i in range(t)}
    for x, y in now:
        f = features(net, x)
        own = attention(net, t, f)
        ce.append(cross_entropy(logits(net, own * f), y, scope(y)))
        for i in range(t):
            fixed = features(frozen, x)
            other = np.exp(log_softmax(attention(frozen, i, fixed)))
            apart[i].append(sum(abs(a - b) for a, b in zip(np.exp(log_softmax(own)), other, strict=True)))
    loss = mean(ce) - lam * sum(mean(values) for values in apart.values())
    labels, errors = [], []
    for (x, y), task in zip(past, past_tasks, strict=True):
        f = features(net, x)
        choices = [attention(net, i, f) for i in range(t + 1)]
        nearest = min(range(t + 1), key=lambda i: float(((choices[i] - f) ** 2).sum()))
        z = logits(net, choices[nearest] * f)
        labels.append(cross_entropy(z, y, scope(y)))
        g = features(teacher, x)
        taught = logits(teacher, attention(frozen, task, g) * g)
        errors += [(a - b) ** 2 for a, b in zip(z, taught, strict=True)]
    return loss + alpha * mean(labels) + beta * mean(errors)


def lwf(net: Net, before: Net, now: list, units: range, old: list[range], lam: float, temperature: float) -> float:
    loss = mean([cross_entropy(logits(net, features(net, x)), y, units) for x, y in now])
    for each in old:
        softened = []
        for x, _ in now:
            z, target = logits(net, features(net, x)), logits(before, features(before, x))
            p = np.exp(log_softmax(np.array([target[u] for u in each]) / temperature))
            q = log_softmax(np.array([z[u] for u in each]) / temperature)
            softened.append(-sum(a * b for a, b in zip(p, q, strict=True)))
        loss += lam * mean(softened)
    return loss


def ewc(net: Net, anchor: Net, fisher: Net, now: list, units: range, lam: float) -> float:
    loss = mean([cross_entropy(logits(net, features(net, x)), y, units) for x, y in now])
    penalty = 0.0
    for name in ("W", "b"):
        for theta, star, weight in zip(net[name].flat, anchor[name].flat, fisher[name].flat, strict=True):
            penalty += weight * (theta - star) ** 2
    return loss + lam / 2 * penalty


def si(net: Net, anchor: Net, importance: Net, now: list, units: range, c: float) -> float:
    return ewc(net, anchor, importance, now, units, 2 * c)


def fisher(net: Net, data: list, units: range) -> Net:
    """Mean over images of the squared gradient of log p(y | x), one image at a time."""
    found = {name: np.zeros_like(net[name]) for name in ("W", "b")}
    for x, y in data:
        g = gradient(lambda n, x=x, y=y: cross_entropy(logits(n, features(n, x)), y, units), net, ("W", "b"))
        for name in found:
            found[name] += g[name] ** 2 / len(data)
    return found


def gradient(loss: Callable[[Net], float], net: Net, names: tuple[str, ...]) -> Net:
    """Central differences of the loss in each named weight."""
    found = {}
    for name in names:
        g = np.zeros_like(net[name])
        for index in np.ndindex(g.shape):
            moved = []
            for step in (1e-6, -1e-6):
                other = {k: v.copy() if k == name else v for k, v in net.items()}
                other[name][index] += step
                moved.append(loss(other))
            g[index] = (moved[0] - moved[1]) / 2e-6
        found[name] = g
    return found
