"""Many-language translation: `--task translation_heated`."""
