"""An executor that serves clients through a relay."""
