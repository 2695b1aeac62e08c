"""Harbor's oracle agent on a small task with a Dockerfile, in sandboxes of a server of its own: check.py HARBOR.

Harbor is as it is published. It builds the task's template from its Dockerfile, starts a sandbox from it, runs the solution, and then the
tests, whose reward must be 1. A second task has a wrong solution, whose reward must be 0: otherwise this would pass without running anything.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from base_image import imported, served  # noqa: E402

PATIENCE = 600


def rewards(harbor, environment, task, jobs):
    command = [harbor, "run", "--path", str(task), "--agent", "oracle", "--env", "e2b", "--jobs-dir", str(jobs), "--yes", "--quiet", "-n", "1"]
    ran = subprocess.run(command, env=environment, timeout=PATIENCE, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    results = [json.loads(path.read_text()) for path in jobs.glob("*/*/result.json")]
    assert len(results) == 1, (results, ran.stdout + ran.stderr)
    assert not results[0].get("exception_info"), json.dumps(results[0]["exception_info"], indent=1)
    return results[0]["verifier_result"]["rewards"]


def main():
    server, environment = served()
    try:
        imported(server, "tools:1")
        with tempfile.TemporaryDirectory() as place:
            place = pathlib.Path(place)
            found = rewards(sys.argv[1], environment, HERE / "task", place / "right")
            assert found == {"reward": 1.0}, found
            print("the oracle's solution: reward 1")
            shutil.copytree(HERE / "task", place / "wrong")
            solution = place / "wrong/solution/solve.sh"
            solution.write_text("#!/bin/bash\necho wrong > /srv/answer\n")
            found = rewards(sys.argv[1], environment, place / "wrong", place / "jobs")
            assert found == {"reward": 0.0}, found
            print("a wrong solution: reward 0")
    except BaseException:
        print(server.logged()[-8000:], file=sys.stderr)
        raise
    finally:
        server.stop()


main()
