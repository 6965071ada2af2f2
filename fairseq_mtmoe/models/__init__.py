"""The models, one folder per system."""

import pkgutil


def systems() -> list[str]:
    """Return the names of the systems' folders in alphabetical order, without those that begin with `_`."""
    return sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_"))
