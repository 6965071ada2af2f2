"""`make gpu-check`: what only a GPU can show, in one table: passed, failed, measured, or skipped and why.

A part is a module of this folder with a function `checks(setting)`, which returns a list of checks. Each part runs in a
process of its own (`run_part.py`), because an error of the GPU spoils every later call of its process, and because a
part may hang. Parts on layers need torch alone. All run on a CPU at toy sizes, too (`--toy`).
"""
