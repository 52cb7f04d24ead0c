"""Hydra's own settings on the command line of a sweep, checked before anything is written."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence

from river_llm.composition import composed
from river_llm.errors import UserError
from river_llm.sweeps.overrides import key_of, value_of

LAUNCHER = "hydra/launcher"
PACKAGES = {
    "joblib": "hydra-joblib-launcher",
    "submitit_local": "hydra-submitit-launcher",
    "submitit_slurm": "hydra-submitit-launcher",
}
"""Launchers that are packages of their own, by their name in Hydra."""


def check_hydra(overrides: Sequence[str]) -> None:
    """Refuses settings of Hydra's that do not exist, or that a sweep sets itself.

    Args:
        overrides: those of Hydra's own settings, e.g. `["hydra/launcher=joblib"]`.

    Raises:
        UserError: the first one that cannot be used, or the package that it needs.
    """
    for override in overrides:
        key = key_of(override)
        if re.match(r"hydra[./]sweep", key):
            raise UserError(
                f"{key} cannot be set: a sweep plans its own cells, in a folder below output.dir"
            )
    package = PACKAGES.get(value_of(overrides, LAUNCHER) or "")
    if package and not importlib.util.find_spec(f"hydra_plugins.{package.replace('-', '_')}"):
        raise UserError(
            f"{LAUNCHER}={value_of(overrides, LAUNCHER)} needs the package {package}: "
            "pip install -c constraints.txt -e '.[launchers]'"
        )
    composed(overrides)
