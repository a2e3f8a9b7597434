"""A Codex App Server that misbehaves as told, for what the real one cannot be made to do.

Run as `python fake_codex.py SCRIPT.json app-server …`; the script says what to answer to each method.
"""

import json
import os
import sys
import time


def say(value):
    sys.stdout.write(value if isinstance(value, str) else json.dumps(value))
    sys.stdout.write("\n")
    sys.stdout.flush()


def schema(script, folder):
    for name, document in script.get("schema", {}).items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(document if isinstance(document, str) else json.dumps(document))
    sys.exit(script.get("schema_exit", 0))


def play(steps, number):
    for step in steps:
        if step == "exit":
            os._exit(0)
        elif step == "die":
            os.kill(os.getpid(), 9)
        elif step == "wait":
            time.sleep(60)
        elif (
            isinstance(step, dict)
            and "result" in step
            and "id" not in step
            or isinstance(step, dict)
            and step.get("error")
            and "method" not in step
        ):
            say({"id": number, **step})
        else:
            say(step)


def main():
    with open(sys.argv[1]) as file:
        script = json.load(file)
    if "generate-json-schema" in sys.argv:
        schema(script, sys.argv[sys.argv.index("--out") + 1])
    for line in sys.stdin:
        message = json.loads(line)
        with open(script["heard"], "a") as heard:
            heard.write(line)
        play(script["steps"].get(message.get("method", "answer"), []), message.get("id"))


main()
