"""The public surface: these names and no others, loaded on first use."""

import subprocess
import sys

import pytest

import vitreous


def test_the_public_names_are_these() -> None:
    assert vitreous.__all__ == [
        "Classifier",
        "VitreousError",
        "__version__",
        "attention_maps",
        "create_model",
        "list_models",
        "load",
    ]
    for name in vitreous.__all__:
        assert getattr(vitreous, name) is not None
    assert dir(vitreous) == sorted(vitreous.__all__)


def test_importing_the_package_imports_no_torch() -> None:
    program = "import sys, vitreous; vitreous.list_models('B'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'creat_model'"):
        _ = vitreous.creat_model
