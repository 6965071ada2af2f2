"""The models: `_common` holds what the systems share, then there is one folder per system."""
