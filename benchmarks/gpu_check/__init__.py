"""`make gpu-check`: what only a GPU can show, in one table: passed, failed, measured, or skipped and why.

A part is a module of this folder with a function `checks(setting)`, which returns a list of checks. It runs in a
process of its own, because an error of the GPU spoils every later call of its process, and because a part may hang.
All run on a CPU at toy sizes, too (`--toy`).
"""
