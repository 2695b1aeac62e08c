"""E2B's client, timed: one line of standard input says what to do, one line of JSON says how long it took.

    version                     which client it is
    live URL KEY                Sandbox.create(), commands.run("true") and kill(), one after the other
    at-once URL KEY COUNT       so many creates at once through the asynchronous client"""

import asyncio
import importlib.metadata
import json
import os
import sys
import time

from e2b import AsyncSandbox, Sandbox


def milliseconds(begin):
    return (time.perf_counter() - begin) * 1000


def live():
    begin = time.perf_counter()
    sandbox = Sandbox.create()
    sandbox.commands.run("true")
    sandbox.kill()
    return {"ms": milliseconds(begin)}


async def create_at_once(count):
    async def one():
        begin = time.perf_counter()
        sandbox = await AsyncSandbox.create()
        return milliseconds(begin), sandbox

    outcomes = await asyncio.gather(*(one() for _ in range(count)), return_exceptions=True)
    made = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    await asyncio.gather(*(sandbox.kill() for _, sandbox in made))
    failures = [repr(outcome) for outcome in outcomes if isinstance(outcome, BaseException)]
    return {"ms": [taken for taken, _ in made], "failures": failures}


def main():
    loop = asyncio.new_event_loop()
    for line in sys.stdin:
        match line.split():
            case ["version"]:
                answer = {"version": importlib.metadata.version("e2b")}
            case [what, url, key, *rest]:
                os.environ.update({"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": key})
                answer = live() if what == "live" else loop.run_until_complete(create_at_once(int(rest[0])))
        print(json.dumps(answer), flush=True)


main()
