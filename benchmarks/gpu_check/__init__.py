"""`make gpu-check`: everything that only a GPU can show, in one table: passed, failed, measured, skipped and why.

The check is a list of parts (`parts.py`), and a part is a list of checks, each a function that returns rows. The
command (`__main__.py`) starts one process per part (`driver.py`), because an error of the GPU spoils every later call
of its process, and because a part may hang. That process (`run_part.py`) writes each check's rows to the part's record
as soon as they are there (`record.py`): what is interrupted goes on after the last finished check, and a process that
dies costs the one check that it died of. `table.py` merges the records into `benchmarks/results/gpu.md` and `gpu.json`.

Parts on layers need torch and nothing else; those on whole models are skipped where fairseq is missing. Everything also
runs on a CPU at toy sizes (`--device cpu --sizes toy`), which is how the kit is tested: all that is different there is
in `device.py` and in `timing.py`.
"""
