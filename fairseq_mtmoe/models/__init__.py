"""The models, one folder per system."""

import pkgutil


def systems() -> list[str]:
    """The systems' folders, in the order of their names; one whose name begins with `_` is none."""
    return sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_"))
