"""Everything that we raise on purpose.

PersonaplexError          exit 2: nothing was converted
├── SettingsError         a flag, a persona, a source or a path is wrong
├── ConfigError           the config tree is wrong
├── ModelError            a model cannot be had: not there, not allowed, not whole
│   └── WeightsError      a checkpoint does not fit the config tree
├── RunStopped            exit 1: a failure ended the run; finished files are kept
└── JobError              exit 1: this file failed, the others went on
    ├── AudioError        its audio cannot be used
    ├── DumpError         its token dump cannot be used
    └── OutputError       its outputs cannot be written

Only JobError is caught for one file; anything else ends the run. A message says what, where and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence


class PersonaplexError(Exception):
    """The root; its message is for the user."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @classmethod
    def listing(cls, headline: str, faults: Sequence[str]) -> PersonaplexError:
        """One message that holds all faults, a line each."""
        return cls("\n".join([headline, *(f"  - {fault}" for fault in faults)]))


class SettingsError(PersonaplexError):
    """A flag, a persona, a source or a path is wrong."""


class ConfigError(PersonaplexError):
    """The config tree cannot be read, or contradicts itself."""


class ModelError(PersonaplexError):
    """A model cannot be had: not there, not allowed, not whole."""


class WeightsError(ModelError):
    """A checkpoint does not fit the config tree."""


class RunStopped(PersonaplexError):
    """A failure ended the run, by the user's wish or because the next file would fail as well."""

    exit_code = 1


class JobError(PersonaplexError):
    """One file failed; the others go on."""

    exit_code = 1


class AudioError(JobError):
    """A file's audio cannot be used."""


class DumpError(JobError):
    """A token dump is not ours, or not whole."""


class OutputError(JobError):
    """A file's outputs cannot be written."""
