"""An MCP server over stdio with two tools, that writes down what it was asked; misbehaves when its first argument says so."""

import json
import sys
import time

mode, heard = sys.argv[1], sys.argv[2]
for line in sys.stdin:
    message = json.loads(line)
    with open(heard, "a") as file:
        file.write(line)
    if message.get("jsonrpc") != "2.0":
        sys.exit(1)
    if "id" not in message:
        continue
    if mode == "silent":
        time.sleep(60)
    if mode == "dies" and message["method"] == "tools/call":
        sys.exit(1)
    result = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "serverInfo": {"name": "m", "version": "1"},
    }
    if message["method"] == "tools/call":
        text = {"long": "é" * 9000, "secret": "ghp_" + "a" * 36}.get(mode, "earlier we chose blue")
        result = {
            "content": [{"type": "text", "text": text}, {"type": "image", "data": ""}],
            "isError": mode == "error",
        }
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
