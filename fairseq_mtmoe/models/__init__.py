"""The models, one folder per system."""

import pkgutil


def systems() -> list[str]:
    """Return the sorted names of the systems' folders, without `_…`."""
    return sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_"))
