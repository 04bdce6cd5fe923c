"""The settings of the daemon, from flags, environment, file and defaults, in that order."""

from execserver.configuration.loading import Effective, load
from execserver.configuration.model import Settings, SettingsError

__all__ = ["Effective", "Settings", "SettingsError", "load"]
