"""DBOS beside us: workflows whose every step makes one HTTP call.

dbos_steps.py DATABASE_URL TOOL_URL: for each line `RUNS STEPS` on the standard input, that many workflows at once of that many steps each;
answers with the seconds they took.
"""

import http.client
import json
import sys
import threading
import time
from urllib.parse import urlsplit

from dbos import DBOS

DATABASE, TOOL = sys.argv[1], urlsplit(sys.argv[2])
# A connection is kept for the next call, as ours are.
KEPT = threading.local()


@DBOS.step()
def step(key: str, body: int) -> str:
    connection = getattr(KEPT, "connection", None)
    if connection is None:
        connection = KEPT.connection = http.client.HTTPConnection(TOOL.hostname, TOOL.port)
    headers = {"content-type": "application/json", "idempotency-key": key}
    connection.request("POST", TOOL.path, json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    if answer.status != 200:
        raise RuntimeError(text)
    return text


@DBOS.workflow()
def drive(count: int) -> str:
    last = ""
    for index in range(count):
        last = step(f"{DBOS.workflow_id}.{index}", index)
    return last


def main() -> None:
    DBOS(config={"name": "steps", "system_database_url": DATABASE, "log_level": "WARNING", "run_admin_server": False})
    DBOS.launch()
    print("ready", flush=True)
    for line in sys.stdin:
        runs, steps = (int(word) for word in line.split())
        begun = time.perf_counter()
        handles = [DBOS.start_workflow(drive, steps) for _ in range(runs)]
        for handle in handles:
            handle.get_result()
        print(time.perf_counter() - begun, flush=True)
    DBOS.destroy()


main()
