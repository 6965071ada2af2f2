"""`report.json` for people: one HTML page without scripts that fetches nothing, and Markdown."""
