"""scikit-learn's own checks of every translator."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from transship.registry import build_method, method_names
from transship.verbs.translate.maps.base import Translator

# check → why it does not apply
NAMED_CCA = "scikit-learn goes by the class name and calls transform(X, y), as only its own CCA has it"
EXPECTED = {
    "cca": {
        "check_transformer_data_not_an_array": NAMED_CCA,
        "check_transformer_general": NAMED_CCA,
    },
}


def expected_failures(estimator: Translator) -> dict[str, str]:
    return EXPECTED.get(estimator.map_name, {})


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [build_method("translate", name) for name in method_names("translate")],
    expected_failed_checks=expected_failures,
)
def test_scikit_learns_conventions_hold(estimator, check):
    check(estimator)
