"""Profiles under `conf/profile/`: how much of Table 2 is run, on what, and what that needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

from river_llm.composition import CONF
from river_llm.config import read
from river_llm.errors import UserError
from river_llm.sweeps.overrides import merge
from river_llm.sweeps.recipe import split

FOLDER = CONF / "profile"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One size of Table 2.

    Attributes:
        about: what it runs and how long that takes, in one line.
        run: overrides of the sweep in one line, its recipe among them; commas span a grid.
        needs_gpu: whether it is refused without a GPU.
    """

    about: str
    run: str
    needs_gpu: bool

    def overrides(self, given: Sequence[str]) -> list[str]:
        """The sweep's command line.

        Args:
            given: overrides that win over the profile's.
        """
        return merge(split(self.run), given)


def load_profile(name: str, folder: Path = FOLDER) -> Profile:
    """Reads a profile.

    Raises:
        UserError: there is none of this name, or its file does not fit.
    """
    known = profile_names(folder)
    if name not in known:
        raise UserError(f"unknown profile {name!r}: choose one of {', '.join(known)}")
    content = OmegaConf.to_container(OmegaConf.load(folder / f"{name}.yaml"))
    profile: Profile = read(Profile, content, f"profile {name}")
    return profile


def profile_names(folder: Path = FOLDER) -> list[str]:
    """All profiles there are."""
    return sorted(path.stem for path in folder.glob("*.yaml"))
