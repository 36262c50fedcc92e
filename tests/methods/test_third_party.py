"""A method installed by another package: one file and an entry point give it a cost, audit labels and a colour."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recollect.audit import take_inventory
from recollect.methods import methods
from recollect.report.collect import collect
from recollect.report.figures import draw_curves
from recollect.runs import resolve, run
from recollect.sweeps.estimate import MOMENTS, estimate

SOURCE = """
import torch
from recollect.methods import BaselineConfig, Learner, Method

class Acme(Learner[BaselineConfig]):
    def __init__(self, network, config, setup):
        super().__init__(network, config, setup)
        self.register_buffer("velocity", torch.zeros(3))

    def phases(self, task):
        yield self.classifier_phase(task, self.step, self.config.units)

    def step(self, batch, update):
        update(self.network.cross_entropy(self.network(batch.x), batch.y, self.config.units))

METHODS = {
    "acme": Method(
        Acme, BaselineConfig(), "an example", cost=7.0, copies=5, contents={"velocity": "velocity of the weights"},
        colour="#ff00aa", order=5,
    )
}
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package on the path with an entry point, as pip would install it."""
    site = tmp_path / "site"
    (site / "acme-1.0.dist-info").mkdir(parents=True)
    (site / "acme_method.py").write_text(textwrap.dedent(SOURCE))
    (site / "acme-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (site / "acme-1.0.dist-info" / "entry_points.txt").write_text("[recollect.methods]\nacme = acme_method:METHODS\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr("recollect.sweeps.estimate.MIN_SECONDS", 0.0)
    return "acme"


def test_a_third_party_method_has_its_own_cost_labels_and_colour(acme: str, tmp_path: Path) -> None:
    assert methods()[acme].about == "an example"
    settings = {"epochs": 1, "train_per_class": 8, "tasks": 2}
    config, plain = (resolve("split-digits", name, 0, settings) for name in (acme, "finetune"))

    cost, usual = estimate([config, plain], "cpu", 1)
    assert cost is not None
    assert usual is not None
    assert cost.hours == pytest.approx(7 * usual.hours)
    assert cost.gigabytes == pytest.approx(usual.gigabytes * (5 + MOMENTS) / (1 + MOMENTS))

    results = [run(one, tmp_path / one.method, device="cpu") for one in (plain, config)]
    entries = {entry.name: entry.kind for entry in take_inventory(tmp_path / acme).entries}
    assert entries["learner.velocity"] == "velocity of the weights"
    assert set(entries.values()) <= {"velocity of the weights", "network", "state of the optimiser"}

    (experiment,) = collect(results)
    assert [variant.method for variant in experiment.variants] == [acme, "finetune"]
    picture = np.asarray(Image.open(draw_curves(experiment, tmp_path / "curves.png")).convert("RGB"))
    assert (picture == (0xFF, 0x00, 0xAA)).all(axis=2).any()
