"""`fairseq-train` whose clock is the processor time of its process: what other programs take does not count.

On an idle machine, and with one thread, this is the time on the wall. `--stop-time-hours`, the speeds in fairseq's log
and the minutes in the run log all follow it; the log's dates count from 1970.
"""

import time

for name in ("time", "monotonic", "perf_counter"):
    setattr(time, name, time.process_time)

from fairseq_cli.train import cli_main  # noqa: E402  (fairseq must see this clock from the start)

if __name__ == "__main__":
    cli_main()
