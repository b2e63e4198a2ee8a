from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from harness import audits
from secede.experiments.ensembles.examine import WORST_CLIENT, Questions, margin
from secede.verification import Evidence


def test_the_margin_is_the_logit_of_the_labels_probability() -> None:
    # softmax of (0, log 3) is (1/4, 3/4); of (0, 0, log 2) it is (1/4, 1/4, 1/2).
    two = margin(Evidence(torch.tensor([[0.0, math.log(3)]]), torch.tensor([1])))
    three = margin(Evidence(torch.tensor([[0.0, 0.0, math.log(2)]]), torch.tensor([0])))
    assert two.tolist() == pytest.approx([math.log(3)], abs=1e-3)
    assert three.tolist() == pytest.approx([math.log(1 / 3)], abs=1e-3)


def test_margins_are_half_floats_and_never_infinite() -> None:
    outputs = torch.tensor([[1e30, 0.0], [0.0, 1e30]])
    found = margin(Evidence(outputs, torch.tensor([0, 0])))
    assert found.dtype == np.float16
    assert found.tolist() == [65504.0, -65504.0]


def test_a_model_is_asked_about_all_sets_and_the_leavers_samples_alone(tmp_path: Path) -> None:
    job = audits.job(tmp_path)
    material, member = job.material, job.material.member(0)
    model = job.simulator(0, member).fresh_model("any")
    answers = Questions(material, member).ask(model)
    sizes = {name: len(values) for name, values in answers.margins.items()}
    assert sizes == {"pool": 200, "retained": 200, "test": 100}
    own = material.clients(member)[0]
    with torch.inference_mode():
        right = model.eval()(own.x).argmax(dim=1) == own.y
        watched = model(material.watched.samples.x).argmax(dim=1) == material.watched.samples.y
    assert answers.scores["leaver_accuracy"] == pytest.approx(float(right.double().mean()))
    by_client = [
        float(watched[material.watched.clients == client].double().mean()) for client in (1, 2)
    ]
    assert answers.scores[WORST_CLIENT] == pytest.approx(min(by_client))
    assert {"clean_accuracy", "attack_success", "leaver_loss"} <= answers.scores.keys()
