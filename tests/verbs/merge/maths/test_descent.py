"""The entropy that is descended."""

import pytest
import torch

from transship.verbs.merge.maths.descent import entropy


def test_entropy_is_zero_when_sure_and_the_logarithm_of_the_classes_when_not():
    assert float(entropy(torch.tensor([[50.0, 0.0, 0.0]]))) == pytest.approx(0.0, abs=1e-6)
    assert float(entropy(torch.zeros(3, 5))) == pytest.approx(float(torch.tensor(5.0).log()), abs=1e-6)
